"""The forkserver: a process that has imported torch and makes workers by forking itself.

Forking takes a few milliseconds; a new interpreter takes seconds to import torch. A process that has never computed
anything is safe to fork: it has no threads, no CUDA context and no autograd engine. The kernel is not such a process.

The forkserver lives as long as the kernel and watches the workers. It kills them, and all processes that they started,
when asked to or when the kernel has ended. After the imports that a worker needs come others that make workers cheaper.
During these, a fork of the forkserver, the stand-in, serves launches; the forkserver takes over once no worker runs.
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

# Imported before the first worker, which needs them.
_PRELOAD = ("numpy", "psutil", "torch", "torch.distributed")
# Each worker would otherwise import these at its first optimizer, DDP or FSDP wrapper (0.8 s and 100 MB per worker).
# torchvision, pandas and pyplot are left out, since they are slow to import. numba must not be imported here: a
# variable that it reads at import chooses its simulator.
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
# Collecting this process's memory in huge pages takes a second, and then saves 20 ms per worker: not worth it for few.
_WORKERS_TO_GATHER = 32
_IDLE_TO_GATHER_S = 5.0


def serve(fd: int, kernel_pid: int) -> None:
    """Import what workers need, then fork, signal, kill and reap workers until the kernel has ended.

    `fd` is a socket to the kernel.
    """
    # PR_SET_PDEATHSIG is not used to end with the kernel: it fires when the *thread* that started us ends, which may be
    # a short-lived one.
    kernel = linux.watch(kernel_pid)
    for name in _PRELOAD:
        importlib.import_module(name)
        if os.getppid() != kernel_pid:
            return  # the kernel has ended
    _know_backends()
    gc.freeze()  # else the collector writes to pages that workers share
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(worker.STACK_SIGNAL, signal.SIG_IGN)  # until a new worker is ready for it
    linux.adopt_orphans()
    channel = Channel(socket.socket(fileno=fd))
    _warm_up_behind_a_stand_in(channel, kernel)
    _Server(channel, kernel, kernel_pid).run()
    os._exit(0)  # a normal exit would take a second to tear down torch


def _know_backends():
    """Have torch find gloo and NCCL now: newer versions search all installed packages, 10 ms in each worker."""
    from torch.distributed.distributed_c10d import BackendConfig

    BackendConfig("cpu:gloo,cuda:nccl")


def _forget_rules():
    """Empty the cache that init_process_group empties: in a worker that would copy shared pages."""
    from torch._dynamo import trace_rules

    trace_rules.clear_lru_cache()


def _warm_up_behind_a_stand_in(channel, kernel):
    """Import the rest while a fork of this process, the stand-in, serves; return once it has handed over."""
    me, (ours, theirs) = os.getpid(), socket.socketpair()
    try:
        pid = os.fork()
    except OSError:  # the next launch reports it; until then forks cost more
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
            os.kill(me, signal.SIGKILL)  # the kernel has ended, which the importing parent does not see
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    theirs.close()
    for step, _ in zip(_warm_up_steps(), _moments(Channel(ours))):
        step()
    with ours, contextlib.suppress(OSError):
        ours.shutdown(socket.SHUT_WR)
        while ours.recv(4096):  # until its last worker has ended
            pass
    _, status = os.waitpid(pid, 0)
    if status:  # it failed or was killed, and its workers ended with it
        linux.kill_descendants()
        if os.WIFSIGNALED(status):
            os.kill(me, os.WTERMSIG(status))
        os._exit(1)


def _warm_up_steps():
    """Yield functions that make workers cheaper, each of about a second at most."""
    for name in _WARM_UP:
        yield lambda: importlib.import_module(name)
    yield _forget_rules
    yield gc.collect
    yield gc.freeze


def _moments(stand_in):
    """Yield whenever a step may be taken, until the stand-in has ended.

    While the first launch runs, its workers have the cores for themselves. Later launches do not delay the steps: if
    they follow one another closely, as in a check, the imports would never be done, and each worker would repeat them.
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
    """Answers the kernel's requests.

    `successor` is a channel to the process that will take over, or None. It is told whether workers run, and closes
    its end to take over.
    """

    def __init__(self, channel, kernel, parent_pid, successor=None):
        self._channel, self._kernel, self._parent_pid, self._successor = channel, kernel, parent_pid, successor
        self._workers = {}  # pid → (launch, rank)
        self._ended = set()  # pids of workers and orphans that ended since the last clearing
        self._folder = None
        self._num_forked, self._idle_since = 0, time.monotonic()
        # Stretches of memory to collect in huge pages; None before that begins.
        self._stretches = [] if successor is not None else None
        self._wakeup, self._wakeup_writer = os.pipe()
        os.set_blocking(self._wakeup_writer, False)
        signal.set_wakeup_fd(self._wakeup_writer)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler nothing is written to _wakeup
        self._selector = selectors.DefaultSelector()
        for source in (channel, self._wakeup, kernel, successor):
            if source is not None:
                self._selector.register(source, selectors.EVENT_READ)

    def run(self):
        """Serve until the kernel has ended, then kill and clean up; return True early if the successor takes over."""
        is_to_leave = False
        while True:
            if is_to_leave and not self._workers and self._channel.is_between_messages:
                return True
            ready = {key.fileobj for key, _ in self._selector.select(self._patience_s())}
            if not ready:
                self._gather()
            # EOF is not enough: the kernel's forks hold our peer's end open.
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
        """Return for how many seconds `run` waits for a request; None means for ever."""
        patience = [0.5] if self._kernel is None else []
        if not self._workers and self._stretches != []:
            is_due = self._num_forked >= _WORKERS_TO_GATHER
            patience.append(0 if is_due else max(0, self._idle_since + _IDLE_TO_GATHER_S - time.monotonic()))
        return min(patience, default=None)

    def _gather(self):
        """Collect one more stretch of memory in huge pages, which takes milliseconds, if it is time for that."""
        if self._patience_s() == 0:
            if self._stretches is None:
                self._stretches = linux.huge_page_stretches()
            if self._stretches:
                linux.collapse(self._stretches.pop())

    def _answer(self, requests):
        """Do what the first of `requests` asks for, and remove it from the list."""
        request, fds = requests.pop(0)
        if isinstance(request, Fork):
            later = [fd for _, others in requests for fd in others]
            self._fork(request, WorkerFds(*fds), later)
            for fd in fds:
                os.close(fd)
        elif isinstance(request, Signal):
            for pid, (_, rank) in self._workers.items():
                if rank in request.ranks and request.number == signal.SIGKILL:
                    linux.kill_group(pid)  # with all that it has started
                elif rank in request.ranks:
                    os.kill(pid, request.number)  # not reaped yet, so its pid is not reused
        elif isinstance(request, Kill):
            self._kill_all()

    def _fork(self, request, fds, later):
        """Fork a worker; `later` are descriptors of later requests, which it must close."""
        launch, rank, self._folder = request
        me = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # no process or memory left
            self._say(NotForked(launch, rank, os.strerror(error.errno)), self._channel)
            return
        if pid == 0:
            try:
                self._forget(later)
                worker.main(me, rank, self._folder, fds)
            except BaseException as error:  # raised before the worker could report errors itself
                worker.tell_why_not(Channel(socket.socket(fileno=fds.channel)), error)
            finally:
                os._exit(1)  # reached only by a bug in the launcher: there must never be two forkservers
        if not self._workers:
            self._say(Busy(), self._successor)
        self._workers[pid] = (launch, rank)
        self._num_forked += 1
        self._say(Forked(launch, rank, pid), self._channel)

    def _forget(self, later):
        """Close the forkserver's descriptors in a new worker."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._channel.close()
        for fd in (self._wakeup, self._wakeup_writer, *later, *([] if self._kernel is None else [self._kernel])):
            os.close(fd)
        if self._successor is not None:
            self._successor.close()

    def _say(self, message, channel):
        """Send a message over `channel`, to the kernel or the successor; do nothing if it is None."""
        with contextlib.suppress(OSError):  # the receiver has ended, which `run` sees
            if channel is not None:
                channel.send(message)

    def _kill_all(self):
        for pid in self._workers:
            linux.kill_group(pid)

    def _clear_away(self, ended=()):
        """Kill the processes and remove the shared memory that workers left behind; called once no worker runs."""
        linux.remove_shared_memory(self._ended | linux.kill_descendants() | set(ended))
        self._ended = set()

    def _reap(self):
        """Reap ended children, and report each worker's exit code."""
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
