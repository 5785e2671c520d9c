"""End every process that a block started, even those whose parent has died."""

import ctypes
import os
import sys
from contextlib import contextmanager

import psutil

PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 5


@contextmanager
def ended_afterwards():
    """Yield a list that, after the block, names the processes that had to be killed.

    On Linux, orphaned processes become children of this one during the block, so that a kernel's forgotten worker is
    found too.
    """
    adopt(True)
    before = set(psutil.Process().children(recursive=True))
    left = []
    try:
        yield left
    finally:
        started = set(psutil.Process().children(recursive=True)) - before
        _, alive = psutil.wait_procs(started, timeout=GRACE_S)
        left += [describe(process) for process in alive]
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs(alive, timeout=GRACE_S)
        reap()
        adopt(False)


def adopt(yes):
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def reap():
    """Reap adopted children that have ended, since no one else waits for them."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def describe(process):
    try:
        return f"{process.pid} ({' '.join(process.cmdline())[:80] or process.name()})"
    except psutil.Error:
        return str(process.pid)
