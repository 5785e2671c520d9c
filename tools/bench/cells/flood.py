"""Workers that print as fast as they can, and what that does to the notebook's memory."""

import os
import time
from pathlib import Path

from course_utils import launch

STOP_MB = 1000  # a notebook that has grown by this much has missed every bar, and others need the memory


def memory_mb(pid, which):
    """VmRSS, what a process has in memory, or VmHWM, the most that it had."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split(f"{which}:")[1].split()[0]) / 1024


def print_lines(seconds, mb, notebook):
    """Print for so long and so much, or until the notebook is far too large; return the MB and the seconds."""
    line, printed_mb, begin = "the loss is 0.123456789 and the accuracy is 0.987654321", 0, time.monotonic()
    most_mb = memory_mb(notebook, "VmRSS") + STOP_MB
    while memory_mb(notebook, "VmRSS") < most_mb and (time.monotonic() < begin + seconds or printed_mb < mb):
        for _ in range(1000):
            print(line)
        printed_mb += 1000 * (len(line) + 1) / 1e6
    return printed_mb, time.monotonic() - begin


def growth(seconds, mb):
    """MB by which this notebook grew at most, and the MB that its two workers printed in how many seconds."""
    launch(print_lines, 0, 0, os.getpid(), world_size=2)  # what only the first launch needs
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
    before = memory_mb("self", "VmRSS")
    printed, took = zip(*launch(print_lines, seconds, mb, os.getpid(), world_size=2, timeout=seconds + 400).results)
    return memory_mb("self", "VmHWM") - before, sum(printed), max(took)
