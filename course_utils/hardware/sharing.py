"""Taking turns on a node that a class shares (COURSE_SHARED=1): a launch locks the GPUs that it uses.

Locks are flock's, on files that stay: the system releases them when a kernel dies, however it dies. A node without
GPUs is one resource, its cores.
"""

import contextlib
import fcntl
import getpass
import os
import tempfile
import time
from pathlib import Path

from .nvml import gpus as visible_gpus

_RETRY_S = 0.2


@contextlib.contextmanager
def reserve(name, world_size, device_type, pause=time.sleep):
    """Wait for this launch's turn; gives the environment variables that point its workers to their GPUs.

    Does nothing unless COURSE_SHARED=1. Of the visible GPUs the emptiest free ones are taken, one per rank, or one for
    all ranks if there are fewer GPUs than ranks. While it waits, calling `pause(seconds)`, it says once for whom.
    """
    if os.environ.get("COURSE_SHARED") != "1":
        yield {}
        return
    gpus = visible_gpus() if device_type == "cuda" else ()
    emptiest_first = sorted(gpus, key=lambda gpu: gpu.free_bytes, reverse=True)
    wanted = world_size if len(gpus) >= world_size else 1
    resources = [gpu.uuid for gpu in emptiest_first] or ["cpu"]
    said = None
    while True:
        locks, holders = _try(resources, wanted)
        if len(locks) == wanted:
            break
        for lock in locks.values():
            os.close(lock)  # all or nothing, or two launches could each wait for what the other holds
        if holders != said and any(holders):
            print(f"waiting for {'a GPU' if gpus else 'the CPU'} of this shared node: {'; '.join(filter(None, holders))}")
            said = holders
        pause(_RETRY_S)
    try:
        for lock in locks.values():
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{getpass.getuser()} runs {name} (process {os.getpid()})".encode(), 0)
        yield {"CUDA_VISIBLE_DEVICES": ",".join(locks)} if gpus else {}
    finally:
        for lock in locks.values():
            os.ftruncate(lock, 0)
            fcntl.flock(lock, fcntl.LOCK_UN)  # also for the copies that a fork of this process may hold
            os.close(lock)


def others_at_work():
    """Return who else is running a launch on this shared node now, one text each, to label timings with."""
    directory = _directory()
    if os.environ.get("COURSE_SHARED") != "1" or not directory.is_dir():
        return []
    mine = f"(process {os.getpid()})"
    holders = (path.read_text() for path in directory.glob("*.lock"))
    return [holder for holder in holders if holder and mine not in holder]


def _directory():
    return Path(tempfile.gettempdir()) / "course-locks"


def _try(resources, wanted):
    """Lock up to `wanted` of `resources` without waiting; return {resource: descriptor}, and who holds the others."""
    directory = _directory()
    if not directory.is_dir():
        directory.mkdir(exist_ok=True)
        directory.chmod(0o1777)
    locks, holders = {}, []
    for resource in resources:
        path = directory / f"{resource}.lock"
        try:
            lock = os.open(path, os.O_RDWR)  # without O_CREAT: in a sticky folder that is refused for others' files
        except FileNotFoundError:
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            with contextlib.suppress(PermissionError):
                os.fchmod(lock, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holders.append(os.pread(lock, 1000, 0).decode(errors="replace"))
            os.close(lock)
            continue
        locks[resource] = lock
        if len(locks) == wanted:
            break
    return locks, holders
