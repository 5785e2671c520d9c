"""What the operating system grants this process: cores, memory, and which torch is installed."""

import functools
import os
import platform
import runpy
from importlib.util import find_spec
from pathlib import Path

import psutil

_ROOT = Path("/")


def num_cores() -> int:
    """The number of cores this process may use: its affinity, and its container's CPU quota."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        cores = os.cpu_count() or 1
    for limit in _cgroup_limits("cpu.max"):  # "150000 100000": 1.5 cores; "max 100000": no limit
        quota, period = limit.split()
        if quota != "max":
            cores = min(cores, int(quota) // int(period))
    return max(cores, 1)


def memory_bytes() -> int:
    """The memory this process may use, in bytes: the machine's, or its container's limit."""
    limits = [int(limit) for limit in _cgroup_limits("memory.max") if limit != "max"]
    return min([psutil.virtual_memory().total, *limits])


def _cgroup_limits(file: str) -> list[str]:
    """What `file` says for this process's cgroup (version 2) and for each one above it."""
    try:
        lines = (_ROOT / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        if line.startswith("0::/"):
            group = _ROOT / "sys/fs/cgroup" / line.removeprefix("0::/")
            for folder in (group, *group.parents):
                try:
                    limits.append((folder / file).read_text().strip())
                except OSError:  # the root has no such file, nor has version 1
                    pass
    return limits


@functools.cache
def cpu_name() -> str:
    """The processor's name without its decorations: "Intel Xeon Platinum 8375C"."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        info = ""
    for line in info.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            name = value.partition("@")[0].replace("(R)", "").replace("(TM)", "")
            return " ".join(word for word in name.split() if word != "CPU")
    return platform.processor() or platform.machine()


@functools.cache
def torch_version() -> tuple[str, str | None]:
    """torch's version and its CUDA's, without the seconds that importing torch takes."""
    package = Path(find_spec("torch").origin).parent
    build = runpy.run_path(str(package / "version.py"))
    return build["__version__"], build["cuda"]
