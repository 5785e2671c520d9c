"""Workers that print as fast as they can, and the growth of the notebook's memory."""

import os
import time
from pathlib import Path

from course_utils import launch

STOP_MB = 1000  # growth beyond every bar; other programs need the memory


def memory_mb(pid, which):
    """A process's resident memory in MB: VmRSS (now) or VmHWM (peak)."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split(f"{which}:")[1].split()[0]) / 1024


def print_lines(seconds, mb, notebook):
    """Print for `seconds` and at least `mb` MB, or until the notebook is far too large; return (MB, seconds)."""
    line, printed_mb, begin = "the loss is 0.123456789 and the accuracy is 0.987654321", 0, time.monotonic()
    most_mb = memory_mb(notebook, "VmRSS") + STOP_MB
    while memory_mb(notebook, "VmRSS") < most_mb and (time.monotonic() < begin + seconds or printed_mb < mb):
        for _ in range(1000):
            print(line)
        printed_mb += 1000 * (len(line) + 1) / 1e6
    return printed_mb, time.monotonic() - begin


def growth(seconds, mb):
    """The notebook's peak growth in MB, the MB that its two workers printed, and the seconds they took."""
    launch(print_lines, 0, 0, os.getpid(), world_size=2)  # warm-up
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = memory_mb("self", "VmRSS")
    printed, took = zip(*launch(print_lines, seconds, mb, os.getpid(), world_size=2, timeout=seconds + 400).results)
    return memory_mb("self", "VmHWM") - before, sum(printed), max(took)
