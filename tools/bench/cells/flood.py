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


def print_for(seconds, notebook):
    """Print for so long, or until the notebook is far too large; return the MB printed and the seconds it took."""
    line, num_lines, begin = "the loss is 0.123456789 and the accuracy is 0.987654321", 0, time.monotonic()
    most_mb = memory_mb(notebook, "VmRSS") + STOP_MB
    while time.monotonic() < begin + seconds and memory_mb(notebook, "VmRSS") < most_mb:
        for _ in range(1000):
            print(line)
        num_lines += 1000
    return num_lines * (len(line) + 1) / 1e6, time.monotonic() - begin


def growth(seconds):
    """MB by which this notebook grew at most, and the MB that its workers printed in how many seconds."""
    launch(print_for, 0, os.getpid(), world_size=2)  # what only the first launch needs
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
    before = memory_mb("self", "VmRSS")
    printed, took = zip(*launch(print_for, seconds, os.getpid(), world_size=2, timeout=seconds + 120).results)
    return memory_mb("self", "VmHWM") - before, sum(printed), max(took)
