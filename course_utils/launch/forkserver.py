"""The forkserver: one clean process that has torch imported and makes workers by forking itself.

Forking takes a few milliseconds where a new interpreter takes seconds to import torch, and a process that has never
computed anything is safe to fork: no threads, no CUDA, no autograd engine. The kernel itself is not such a process.

It lives as long as the kernel, watches the workers for it, and kills them, and whatever they started, when asked to
or when the kernel is gone.
"""

import ctypes
import gc
import importlib
import os
import selectors
import shutil
import signal
import socket
import sys
import threading
import time

from . import hugepages
from .channel import Channel

# Before the first worker: without these there is none.
_PRELOAD = ("numpy", "psutil", "torch", "torch.distributed")
# As soon as nothing else is asked for: what workers would otherwise each import at their first optimizer, DDP or FSDP
# wrapper (0.8 s and 100 MB a worker). Not torchvision, pandas or pyplot, which are slow to import, and never numba,
# whose simulator is chosen before that.
_PRELOAD_WHEN_IDLE = (
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
    "torch.utils.checkpoint",
)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def serve(fd, kernel_pid):
    """Import what workers need, then fork, signal, kill and reap workers until the kernel is gone.

    `fd` is a socket to the kernel. Requests: ("fork", rank, folder) with descriptors, ("signal", ranks, signal number),
    ("kill",). Answers: ("forked", rank), ("exited", rank, exit code or -signal, monotonic time).
    """
    kernel = _watch(kernel_pid)
    for name in _PRELOAD:
        importlib.import_module(name)
        if os.getppid() != kernel_pid:
            return  # it is gone already
    from . import worker

    # What a worker leaves behind becomes our child, so that it can be found.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    channel = Channel(socket.socket(fileno=fd))
    wakeup, wakeup_writer = os.pipe()
    os.set_blocking(wakeup_writer, False)
    signal.set_wakeup_fd(wakeup_writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler, so that the wake-up descriptor is written to
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    selector = selectors.DefaultSelector()
    for source in (channel, wakeup, *([kernel] if kernel is not None else [])):
        selector.register(source, selectors.EVENT_READ)
    signal.signal(worker.STACK_SIGNAL, signal.SIG_IGN)  # until a new worker is ready for it
    server_pid, ranks, folder = os.getpid(), {}, None  # pid → rank

    idle_work = _idle_work()

    while True:
        # Not while workers run: they share our pages, and would be left with copies of their own.
        is_idle = idle_work is not None and not ranks
        ready = {key.fileobj for key, _ in selector.select(0 if is_idle else 0.5 if kernel is None else None)}
        if is_idle and not ready and next(idle_work, "done") == "done":
            idle_work = None
        # The end of file of `channel` alone would not tell: what the kernel has forked holds a copy of its end.
        if os.getppid() != kernel_pid or kernel in ready:
            break
        if wakeup in ready:
            os.read(wakeup, 4096)
            for message in _reap(ranks):
                _send(channel, *message)
        try:
            requests = channel.receive() if channel in ready else []
        except (EOFError, OSError):
            break
        while requests:
            (request, *details), fds = requests.pop(0)
            if request == "fork":
                rank, folder = details
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    selector.close()
                    channel.close()
                    for inherited in (wakeup, wakeup_writer, *([kernel] if kernel is not None else [])):
                        os.close(inherited)
                    for later in requests:
                        for inherited in later[1]:
                            os.close(inherited)
                    try:
                        worker.main(server_pid, rank, folder, *fds)
                    finally:
                        os._exit(1)  # not reached, but for a fault in the launcher itself: never two forkservers
                ranks[pid] = rank
                for received in fds:
                    os.close(received)
                _send(channel, "forked", rank)
            elif request == "signal":
                wanted, signum = details
                for pid, rank in ranks.items():
                    if rank in wanted:
                        os.kill(pid, signum)  # not reaped yet, so the pid is still its own
            elif request == "kill":
                for pid in ranks:
                    _kill_group(pid)
    for pid in ranks:
        _kill_group(pid)
    _kill_strays()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # there is nothing to tidy up, and tearing down torch takes a second


def _idle_work():
    """Generator: each step makes later forks cheaper, and none takes much longer than a second."""
    for name in _PRELOAD_WHEN_IDLE:
        yield importlib.import_module(name)
    # The collector's marks would otherwise be written to pages that all workers share.
    gc.collect()
    gc.freeze()
    for address in hugepages.stretches():
        yield hugepages.collapse(address)


def _watch(pid):
    """Return a descriptor that becomes readable when process `pid` ends, or None where the system has none.

    PR_SET_PDEATHSIG would not do here: it fires when the *thread* ends that started us, and the kernel may have been
    warming us up from a short-lived one.
    """
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _send(channel, *message):
    try:
        channel.send(message)
    except OSError:
        pass  # the kernel is gone, which the loop will see


def _reap(ranks):
    """Yield ("exited", …) for every worker that has ended, after killing what is left of its process group."""
    while True:
        try:
            # Look before reaping: until it is reaped, its pid, which names the group, belongs to nobody else.
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        if ended.si_pid in ranks:
            _kill_group(ended.si_pid)
        _, status = os.waitpid(ended.si_pid, 0)
        if ended.si_pid in ranks:
            rank = ranks.pop(ended.si_pid)
            if not ranks:
                _kill_strays()
            yield "exited", rank, os.waitstatus_to_exitcode(status), time.monotonic()


def _kill_group(pid):
    for kill in (os.killpg, os.kill):  # a worker that has only just been forked has no group of its own yet
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def _kill_strays():
    """Kill what workers started and left behind, also what has moved to a session of its own."""
    import psutil

    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return  # no child is left, the usual case
        if not ended:
            for stray in psutil.Process().children(recursive=True):
                try:
                    stray.kill()
                except psutil.NoSuchProcess:
                    pass


def end_with_parent(parent_pid):
    """Have this process killed when its parent ends: by the system on Linux, by a watching thread elsewhere."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:

        def watch():
            while os.getppid() == parent_pid:
                time.sleep(0.5)
            os.killpg(0, signal.SIGKILL)

        threading.Thread(target=watch, daemon=True).start()
    if os.getppid() != parent_pid:  # it ended before we asked
        os._exit(1)


def _prctl(option, value):
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(option, int(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl failed")
