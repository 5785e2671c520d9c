"""Supervises the workers of one launch from the notebook: messages, output, exits and the timeout."""

import contextlib
import itertools
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence

from ...hardware import num_cores
from ...processes import interrupts, linux, payload
from ...processes.core_time import Turns
from ..forkserver.protocol import (
    Channel,
    Describe,
    Exited,
    Fork,
    Forked,
    Kill,
    NotForked,
    Signal,
    WorkerFds,
)
from ..worker import prompt
from ..worker.worker import STACK_SIGNAL
from .common import Watch
from .errors import LauncherError
from .explain import explain
from .outcome import Outcome, is_in_torch_distributed

_STACKS_S = 0.5
_DESCRIBE_S = 0.2  # a rank in C code that holds the GIL does not answer
_RECALL_S = 1.0  # for those that do: reading 2000 collectives takes 25 ms of a core, and many ranks may share one
_GRACE_S = 1.0  # for a rank's own `except KeyboardInterrupt` or `finally` to save data
_COURTESY_S = 0.3  # for other ranks to reach their breakpoint, or this one its next line
_STOP_S = 5.0
_TURNS_S = 0.5  # between two measurements of waiting for cores
START_S = 120.0  # for importing torch from a slow disk, and for the rendezvous

_launches = itertools.count()


class Supervisor(Watch):
    """Supervises the workers of one launch: call `start`, then `wait`, and always `stop`."""

    def __init__(self, handle, world_size, folder, surroundings_fd, call_fd, stream=None, keeps_going=False):
        super().__init__(world_size, stream, keeps_going)
        self._launch = next(_launches)
        self.handle, self._folder, self.given_fds = handle, folder, (surroundings_fd, call_fd)
        self.channels, self._stacks, self._outputs = {}, {}, {}
        self._stacks_begin = {}  # rank → offset in its file of stacks at which this request begins
        self._selector = selectors.DefaultSelector()
        self._selector.register(handle, selectors.EVENT_READ, (self._read_handle, None))
        self.alive = set()
        self.deaf_until = 0.0  # interrupts are delayed until then, during a recovery
        self._refused = None  # the first NotForked
        self._turns = None  # Turns, if the timeout does not count waiting for cores
        self.held_up_s = 0.0  # what it has not counted
        self.forget_memory_kills()

    def start(self) -> None:
        """Ask the forkserver for the workers."""
        for rank in range(self.world_size):
            self.start_rank(rank)

    def forgive_waiting(self) -> None:
        """Have timeouts not count the time in which ranks waited for cores that other programs used."""
        self._turns = Turns(num_cores())

    def start_rank(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        self.channels[rank] = Channel(ours)
        with theirs:
            self._stacks[rank] = stacks = payload.anonymous_file("course-stacks")
            reader, writer = os.pipe()
            self._outputs[rank] = reader
            os.set_blocking(reader, False)
            try:
                fds = WorkerFds(theirs.fileno(), writer, stacks, *self.given_fds)
                self.handle.send(Fork(self._launch, rank, self._folder), fds)
            finally:
                os.close(writer)
        self.alive.add(rank)
        self._selector.register(self.channels[rank], selectors.EVENT_READ, (self._read_channel, rank))
        self._selector.register(reader, selectors.EVENT_READ, (self._read_output, rank))

    def forget_rank(self, rank: int) -> None:
        """Close the descriptors of a rank that has ended."""
        for source in (self.channels[rank], self._outputs[rank]):
            with contextlib.suppress(KeyError):  # unregistered at its end of file
                self._selector.unregister(source)
        self.channels.pop(rank).close()
        os.close(self._outputs.pop(rank))
        os.close(self._stacks.pop(rank))
        self._stacks_begin.pop(rank, None)

    def wait(self, timeout: float) -> None:
        """Wait until all ranks have returned and ended; with `keeps_going`, until all have ended and one has returned.

        `timeout` counts seconds from when all ranks had begun. Raises WorkerError if one fails (with `keeps_going`: if
        all do) or at the timeout; and LauncherError.
        """
        seconds = self.watch(timeout, START_S)
        counts = all if self.keeps_going else any
        if counts(outcome.has_failed for outcome in self.outcomes):
            raise explain(self.whereabouts(), killed_for_memory=self.killed_for_memory)
        if self.alive:
            error = explain(self.whereabouts(), timeout=seconds, held_up_s=self.held_up_s)
            self.interrupt_ranks()
            raise error

    def note_failure(self, outcome: Outcome) -> None:
        super().note_failure(outcome)
        if self.keeps_going and outcome.rank in self.alive:  # it has raised, and waits to be killed
            self.handle.send(Signal((outcome.rank,), int(signal.SIGKILL)))

    @property
    def is_deaf(self) -> bool:
        return super().is_deaf or time.monotonic() < self.deaf_until

    def look(self, until: float) -> None:
        if self._turns is None:
            self._look(until)
            return
        until = min(until, self._turns.asked + _TURNS_S)
        self._look(until)
        if time.monotonic() >= until:
            held_up_s = self._turns.held_up_s(self.pids.values())
            self.held_up_s, self.paused_s = self.held_up_s + held_up_s, self.paused_s + held_up_s

    def _look(self, until):
        if self.prompting:
            self._converse()
        elif time.monotonic() < self.deaf_until:
            self.take(self.select(min(until, self.deaf_until)))
        else:
            with interrupts.allowed():
                ready = self.select(until)
            self.take(ready)
        if self._refused is not None:
            raise LauncherError(
                f"the system did not let rank {self._refused.rank} start ({self._refused.reason}): close other "
                "programs, or ask for fewer workers"
            )

    def _converse(self):
        """Pass lines from the student to the debugger of one rank, until that rank continues."""
        since = time.monotonic()
        self.take_until(lambda: self.prompting.keys() >= self.alive, _COURTESY_S)
        rank = min(self.prompting, default=None)  # it may have ended meanwhile
        while rank in self.prompting:
            if self._outputs[rank] in self._selector.get_map():
                self._read_output(rank, self._outputs[rank])  # show the output before the prompt
            if self.display is not None:
                self.display.catch_up()
            typed = prompt.read_line(rank, self.prompting.pop(rank))
            with contextlib.suppress(OSError):  # it has ended meanwhile
                self.channels[rank].send(typed)
            self.take_until(lambda: rank in self.prompting or rank not in self.alive, _COURTESY_S)
        self.paused_s += time.monotonic() - since

    def take_until(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            self.take(self.select(deadline))

    def interrupt_ranks(self) -> None:
        """Send the ranks SIGINT, and give them a moment to handle it.

        A rank that waits in C++, for another rank or a GPU, cannot handle it and is not waited for.
        """
        self.is_stopping = True  # exceptions from now on are no failures
        ranks = tuple(rank for rank in self.alive if not self.outcomes[rank].has_failed and rank in self.begun)
        waits = [rank for rank in ranks if not is_in_torch_distributed(self.outcomes[rank].frames)]
        if not waits:
            return
        with contextlib.suppress(LauncherError):  # the forkserver and its workers have ended
            self.handle.send(Signal(ranks, int(signal.SIGINT)))
            self.take_until(lambda: self.interrupted.union(set(waits) - self.alive) >= set(waits), _GRACE_S)

    def stop(self) -> bool:
        """Kill what still runs, show the rest of the output and close everything; return whether all have ended."""
        self.is_stopping = True
        with contextlib.ExitStack() as stack:
            for fd in [*self._stacks.values(), *self._outputs.values()]:
                stack.callback(os.close, fd)
            for channel in self.channels.values():
                stack.callback(channel.close)
            stack.callback(self._selector.close)
            stack.callback(self.output.finish)
            self._kill()
            self._selector.unregister(self.handle)
            outputs = set(self._outputs.values())
            deadline = time.monotonic() + 1
            while outputs & set(self._selector.get_map()) and time.monotonic() < deadline:
                self.take(self.select(deadline))
        return not self.alive

    def _kill(self):
        try:
            if self.alive:
                self.handle.send(Kill())
            deadline = time.monotonic() + (_STOP_S if self.handle.has_imported else 0)
            while self.alive and time.monotonic() < deadline:
                self.take(self.select(deadline))
        except LauncherError:
            self.alive.clear()  # the forkserver and its workers have ended

    def forget_memory_kills(self) -> None:
        """Have `killed_for_memory` consider only kills from now on."""
        self._memory_kills = linux.count_memory_kills()

    @property
    def killed_for_memory(self) -> bool:
        """Whether the system's OOM killer has killed a process since the launch, or the request, began."""
        return linux.count_memory_kills() > self._memory_kills

    @property
    def is_over(self) -> bool:
        return not self.alive

    def select(self, deadline: float) -> list[selectors.SelectorKey]:
        """Wait until `deadline` at the latest for readable descriptors, and return their keys, for `take`."""
        seconds = min(max(0, deadline - time.monotonic()), 3600)  # epoll refuses infinity
        return [key for key, _ in self._selector.select(seconds)]

    def take(self, ready: Iterable[selectors.SelectorKey]) -> None:
        for key in ready:
            if key.fileobj in self._selector.get_map():  # an earlier key may have read it to its end
                read, rank = key.data
                with contextlib.suppress(BlockingIOError):  # or have read all its data
                    read(rank, key.fileobj)

    def _read_output(self, rank, fd):
        if not self.output.read(rank, fd):
            self._selector.unregister(fd)

    def _read_channel(self, rank, channel):
        try:
            messages = channel.receive(wait=False)
        except EOFError:
            self._selector.unregister(channel)
            return
        for message, fds in messages:
            self.hear(rank, message, fds)

    def _read_handle(self, _, handle):
        for message in handle.receive():
            if message.launch != self._launch:
                continue
            if isinstance(message, Exited):
                self._note_end(message)
            elif isinstance(message, Forked):
                self.pids[message.rank] = message.pid
            elif isinstance(message, NotForked):
                self.alive.discard(message.rank)
                self._refused = self._refused or message  # raised by _look, after all messages

    def _note_end(self, end):
        self.alive.discard(end.rank)
        self.pids.pop(end.rank, None)
        channel = self.channels[end.rank]
        with contextlib.suppress(BlockingIOError):  # a child of the worker may still hold the other end
            while channel in self._selector.get_map():  # messages that it sent before it ended
                self._read_channel(end.rank, channel)
        self.note_end(end.rank, end.code, end.time)

    def whereabouts(self) -> list[Outcome]:
        """Have every rank that still runs say where it is and what it has called, and return the outcomes."""
        asked = [rank for rank in sorted(self.alive) if self.may_say_where(self.outcomes[rank])]
        if not asked or not self.handle.has_imported:
            return self.outcomes
        for rank in asked:
            self.outcomes[rank].described = ()
            if not self.outcomes[rank].returned:
                self.outcomes[rank].told = None
            self.tell(rank, Describe())
        for rank in (untold := [rank for rank in self.alive if self.outcomes[rank].told is None]):
            self.recall(rank)
        self.ask(asked, lambda ranks: self.handle.send(Signal(ranks, int(STACK_SIGNAL))), _STACKS_S)
        self.take_until(lambda: all(self._has_answered(rank) for rank in asked), _DESCRIBE_S)
        answering = [rank for rank in untold if rank not in asked or self._has_answered(rank)]
        self.take_until(lambda: all(self._has_recalled(rank) for rank in answering), _RECALL_S)
        return self.outcomes

    def tell(self, rank: int, message: object, fds: Sequence[int] = ()) -> None:
        if rank in self.alive:
            with contextlib.suppress(OSError):  # it has just ended; Exited will follow
                self.channels[rank].send(message, fds)

    def _has_answered(self, rank):
        return bool(self.outcomes[rank].described or self.outcomes[rank].has_failed or rank not in self.alive)

    def _has_recalled(self, rank):
        return self.outcomes[rank].told is not None or rank not in self.alive

    def begin_anew(self) -> None:
        super().begin_anew()
        self._stacks_begin = {rank: os.fstat(fd).st_size for rank, fd in self._stacks.items()}

    def stacks(self, rank: int) -> str:
        return os.pread(self._stacks[rank], 1 << 20, self._stacks_begin.get(rank, 0)).decode(errors="replace")
