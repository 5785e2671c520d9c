"""What the operating system grants this process: cores, memory, and which torch is installed."""

import functools
import math
import os
import platform
import runpy
from importlib.util import find_spec
from pathlib import Path

import psutil

_ROOT = Path("/")


def num_cores() -> int:
    """The number of cores this process may use: by affinity and container CPU quota, rounded up as loky does."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        cores = os.cpu_count() or 1
    for limit in cgroup_limits("cpu.max", "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        # "150000 100000" is 1.5 cores; no limit is "max 100000" in version 2, "-1 100000" in version 1.
        quota, _, period = limit.partition(" ")
        if quota.isdigit() and int(quota) > 0:
            cores = min(cores, math.ceil(int(quota) / int(period)))
    return cores


def memory_bytes() -> int:
    """The memory this process may use, in bytes: the machine's, or its container's limit."""
    # Version 1 expresses no limit by a number larger than any machine's memory.
    limits = cgroup_limits("memory.max", "memory", ["memory.limit_in_bytes"])
    return min([psutil.virtual_memory().total, *(int(limit) for limit in limits if limit.isdigit())])


def cgroup_limits(file: str, controller: str, files_v1: list[str]) -> list[str]:
    """The limits of this process's cgroup and of each one above it, one text each.

    Version 2 has them in `file`; version 1 in the `files_v1` of the `controller`, joined in that order.
    """
    try:
        lines = (_ROOT / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:  # "0::/user.slice" in version 2, "4:cpu,cpuacct:/docker/1a2b" in version 1
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            top, files = _ROOT / "sys/fs/cgroup", [file]
        elif controller in controllers.split(","):
            top, files = _ROOT / "sys/fs/cgroup" / controller, files_v1
        else:
            continue
        own = top / group.lstrip("/")
        # In a container the group may have the host's name, while its limits are at the top.
        for folder in (own, *own.parents):
            try:
                limits.append(" ".join((folder / name).read_text().strip() for name in files))
            except OSError:  # the root group of version 2 has no such file
                pass
    return limits


@functools.cache
def cpu_name() -> str:
    """The processor's name, shortened: "Intel Xeon Platinum 8375C"."""
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
    """The version of torch and its CUDA version, without the seconds that importing torch takes."""
    package = Path(find_spec("torch").origin).parent
    build = runpy.run_path(str(package / "version.py"))
    return build["__version__"], build["cuda"]
