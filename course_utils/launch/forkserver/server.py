"""The forkserver: one clean process that has torch imported and makes workers by forking itself.

Forking takes a few milliseconds where a new interpreter takes seconds to import torch, and a process that has never
computed anything is safe to fork: no threads, no CUDA, no autograd engine. The kernel itself is not such a process.

It lives as long as the kernel, watches the workers for it, and kills them, and whatever they started, when asked to
or when the kernel is gone. While it still imports what makes workers cheaper, a fork of it, the stand-in, serves in its
place, so that no launch waits; it takes over in a moment in which no worker runs.
"""

import contextlib
import gc
import importlib
import os
import selectors
import shutil
import signal
import socket
import time
import traceback

from ...processes import linux
from ..worker import worker
from .protocol import Busy, Channel, Exited, Fork, Forked, Idle, Kill, NotForked, Signal, WorkerFds

# Before the first worker: without these there is none.
_PRELOAD = ("numpy", "psutil", "torch", "torch.distributed")
# What workers would otherwise each import at their first optimizer, DDP or FSDP wrapper (0.8 s and 100 MB a worker).
# Not torchvision, pandas or pyplot, which are slow to import, and never numba, whose simulator is chosen before that.
_WARM_UP = (
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
    "torch.utils.checkpoint",
)
# Gathering this process's memory takes a second, and then each worker costs 20 ms less: not for the few of a script.
_WORKERS_TO_GATHER = 32
_IDLE_TO_GATHER_S = 5.0


def serve(fd: int, kernel_pid: int) -> None:
    """Import what workers need, then fork, signal, kill and reap workers until the kernel is gone.

    `fd`: a socket to it.
    """
    # PR_SET_PDEATHSIG would not do to end with the kernel: it fires when the *thread* ends that started us, and the
    # kernel may have been warming us up from a short-lived one.
    kernel = linux.watch(kernel_pid)
    for name in _PRELOAD:
        importlib.import_module(name)
        if os.getppid() != kernel_pid:
            return  # it is gone already
    _know_backends()
    gc.freeze()  # or the collector would write its marks to pages that workers share
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(worker.STACK_SIGNAL, signal.SIG_IGN)  # until a new worker is ready for it
    linux.adopt_orphans()
    channel = Channel(socket.socket(fileno=fd))
    _warm_up_behind_a_stand_in(channel, kernel)
    _Server(channel, kernel, kernel_pid).run()
    os._exit(0)  # there is nothing to tidy up, and tearing down torch takes a second


def _know_backends():
    """Have torch find gloo and NCCL now: newer torch looks among all installed packages, 10 ms in each worker."""
    from torch.distributed.distributed_c10d import BackendConfig

    BackendConfig("cpu:gloo,cuda:nccl")


def _forget_rules():
    """Have torch empty now what init_process_group empties: it would do so in memory that workers share."""
    from torch._dynamo import trace_rules

    trace_rules.clear_lru_cache()


def _warm_up_behind_a_stand_in(channel, kernel):
    """Import the rest while a fork of this process serves; return once it has handed over."""
    me, (ours, theirs) = os.getpid(), socket.socketpair()
    try:
        pid = os.fork()
    except OSError:  # no more processes, no more memory: the next launch reports it; until then forks cost more
        return
    if pid == 0:
        try:
            ours.close()
            linux.end_with_parent(me)
            linux.name_process("stand-in")
            linux.adopt_orphans()
            has_handed_over = _Server(channel, kernel, me, successor=Channel(theirs)).run()
            if has_handed_over:
                os._exit(0)
            os.kill(me, signal.SIGKILL)  # the kernel is gone; it only imports, and does not look up from that
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    theirs.close()
    for step, _ in zip(_warm_up_steps(), _moments(Channel(ours))):
        step()
    with ours, contextlib.suppress(OSError):
        ours.shutdown(socket.SHUT_WR)
        while ours.recv(4096):  # until its last workers have ended
            pass
    _, status = os.waitpid(pid, 0)
    if status:  # it has ended by itself or was killed, and its workers with it
        linux.kill_descendants()
        if os.WIFSIGNALED(status):
            os.kill(me, os.WTERMSIG(status))
        os._exit(1)


def _warm_up_steps():
    """Yield what makes workers cheaper, in steps none of which takes much longer than a second."""
    for name in _WARM_UP:
        yield lambda: importlib.import_module(name)
    yield _forget_rules
    yield gc.collect
    yield gc.freeze


def _moments(stand_in):
    """Yield whenever a step may be taken, until the stand-in has ended.

    While the first launch runs, its workers have the cores for themselves. Later ones do not hold us up: where they
    follow one another closely, as a check's do, we should never get ready, and each of their workers would import
    for itself what we are about to import for all.
    """
    is_busy = has_been_idle = False
    while True:
        try:
            for message, _ in stand_in.receive(wait=is_busy and not has_been_idle):
                is_busy = isinstance(message, Busy)
                has_been_idle |= not is_busy
        except BlockingIOError:
            pass
        except EOFError:
            return
        if has_been_idle or not is_busy:
            yield


class _Server:
    """Answers the kernel's requests. `successor` is a channel to the process that is to take over, None if none is: it
    hears whether workers run, and closes its end to take over.
    """

    def __init__(self, channel, kernel, parent_pid, successor=None):
        self._channel, self._kernel, self._parent_pid, self._successor = channel, kernel, parent_pid, successor
        self._workers = {}  # pid → (launch, rank)
        self._ended = set()  # pids of workers, and of what they left behind, since no worker ran
        self._folder = None
        self._num_forked, self._idle_since = 0, time.monotonic()
        self._stretches = [] if successor is not None else None  # of memory to gather; None before that begins
        self._wakeup, self._wakeup_writer = os.pipe()
        os.set_blocking(self._wakeup_writer, False)
        signal.set_wakeup_fd(self._wakeup_writer)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler, so that the wake-up descriptor is written to
        self._selector = selectors.DefaultSelector()
        for source in (channel, self._wakeup, kernel, successor):
            if source is not None:
                self._selector.register(source, selectors.EVENT_READ)

    def run(self):
        """Serve until the kernel is gone, then clear away; return True if it was `successor` that ended us."""
        is_to_leave = False
        while True:
            if is_to_leave and not self._workers and self._channel.is_between_messages:
                return True
            ready = {key.fileobj for key, _ in self._selector.select(self._patience_s())}
            if not ready:
                self._gather()
            # The end of file of the channel alone would not tell: what the kernel has forked holds a copy of its end.
            if os.getppid() != self._parent_pid or self._kernel in ready:
                break
            if self._successor in ready:
                is_to_leave = True
                self._selector.unregister(self._successor)
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
                self._reap()
            try:
                requests = self._channel.receive() if self._channel in ready else []
            except (EOFError, OSError):
                break
            while requests:
                self._answer(requests)
        self._kill_all()
        self._clear_away(self._workers)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        return False

    def _patience_s(self):
        """Seconds that it waits for a request before it does something else, None for ever."""
        patience = [0.5] if self._kernel is None else []
        if not self._workers and self._stretches != []:
            is_due = self._num_forked >= _WORKERS_TO_GATHER
            patience.append(0 if is_due else max(0, self._idle_since + _IDLE_TO_GATHER_S - time.monotonic()))
        return min(patience, default=None)

    def _gather(self):
        """Gather one more stretch of memory, some milliseconds' work, if it is time for that."""
        if self._patience_s() == 0:
            if self._stretches is None:
                self._stretches = linux.huge_page_stretches()
            if self._stretches:
                linux.collapse(self._stretches.pop())

    def _answer(self, requests):
        """Do what the first of `requests` asks for, and take it from the list."""
        request, fds = requests.pop(0)
        if isinstance(request, Fork):
            later = [fd for _, others in requests for fd in others]
            self._fork(request, WorkerFds(*fds), later)
            for fd in fds:
                os.close(fd)
        elif isinstance(request, Signal):
            for pid, (_, rank) in self._workers.items():
                if rank in request.ranks and request.number == signal.SIGKILL:
                    linux.kill_group(pid)  # with what it has started
                elif rank in request.ranks:
                    os.kill(pid, request.number)  # not reaped yet, so the pid is still its own
        elif isinstance(request, Kill):
            self._kill_all()

    def _fork(self, request, fds, later):
        """Make a worker; `later` are descriptors that are not for it."""
        launch, rank, self._folder = request
        me = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # no more processes, no more memory
            self._say(NotForked(launch, rank, os.strerror(error.errno)), self._channel)
            return
        if pid == 0:
            try:
                self._forget(later)
                worker.main(me, rank, self._folder, fds)
            except BaseException as error:  # before it could send anything itself
                worker.tell_why_not(Channel(socket.socket(fileno=fds.channel)), error)
            finally:
                os._exit(1)  # not reached, but for a fault in the launcher itself: never two forkservers
        if not self._workers:
            self._say(Busy(), self._successor)
        self._workers[pid] = (launch, rank)
        self._num_forked += 1
        self._say(Forked(launch, rank, pid), self._channel)

    def _forget(self, later):
        """In a new worker: close what is the forkserver's own."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._channel.close()
        for fd in (self._wakeup, self._wakeup_writer, *later, *([] if self._kernel is None else [self._kernel])):
            os.close(fd)
        if self._successor is not None:
            self._successor.close()

    def _say(self, message, channel):
        """Send a message to the kernel, or to our successor if there is one."""
        with contextlib.suppress(OSError):  # it is gone, which the loop will see
            if channel is not None:
                channel.send(message)

    def _kill_all(self):
        for pid in self._workers:
            linux.kill_group(pid)

    def _clear_away(self, ended=()):
        """Once no worker runs: end what they left behind."""
        linux.remove_shared_memory(self._ended | linux.kill_descendants() | set(ended))
        self._ended = set()

    def _reap(self):
        """Say of every worker that has ended how."""
        for pid, status in linux.ended_children(self._workers):
            self._ended.add(pid)
            if pid in self._workers:
                moment = time.monotonic()
                launch, rank = self._workers.pop(pid)
                if not self._workers:
                    self._idle_since = moment
                    self._clear_away()
                    self._say(Idle(), self._successor)
                self._say(Exited(launch, rank, os.waitstatus_to_exitcode(status), moment), self._channel)
