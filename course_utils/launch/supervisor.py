"""Watches the workers of one launch from the notebook's side: messages, output, ends and the clock."""

import contextlib
import os
import selectors
import socket
import time

from . import interrupts, payload
from .channel import Channel
from .failure import Fate, explain, frames_of_dump
from .server import ServerGone
from .streams import Output
from .worker import STACK_SIGNAL, Report

# After a first failure others may still report theirs: a rank that only lost its connection waits for the better story.
_SETTLE_S, _SETTLE_LOST_CONNECTION_S = 0.1, 1.0
_STACKS_S = 0.5
_STOP_S = 5.0
_FORK_S = 120.0  # until the forkserver has imported torch, on a slow disk


class Supervisor:
    """The workers of one launch. `start`, then `wait`, and `stop` in any case."""

    def __init__(self, server, world_size):
        self.world_size = world_size
        self.results = [None] * world_size
        self.rows = []  # (rank, monotonic time, step, values) as logged
        self.output = Output(world_size)
        self._server = server
        self._fates = [Fate(rank) for rank in range(world_size)]
        self._channels, self._stacks = {}, []
        self._selector = selectors.DefaultSelector()
        self._selector.register(server, selectors.EVENT_READ, (self._read_server, None))
        self._forked = 0
        self._alive = set()
        self._settled = None  # when to stop waiting for more stories
        self._memory_kills = _count_memory_kills()

    def start(self, folder, surroundings_fd, call_fd):
        """Ask the forkserver for the workers."""
        for rank in range(self.world_size):
            ours, theirs = socket.socketpair()
            reader, writer = os.pipe()
            stacks = payload.anonymous_file("course-stacks")
            self._stacks.append(stacks)
            self._channels[rank] = Channel(ours)
            self._selector.register(self._channels[rank], selectors.EVENT_READ, (self._read_channel, rank))
            os.set_blocking(reader, False)
            self._selector.register(reader, selectors.EVENT_READ, (self._read_output, rank))
            try:
                self._server.fork(rank, folder, [theirs.fileno(), writer, stacks, surroundings_fd, call_fd])
                self._alive.add(rank)
            finally:
                theirs.close()
                os.close(writer)

    def wait(self, timeout):
        """Return when all ranks have returned and ended. Raises WorkerError when one failed or time is up."""
        deadline = time.monotonic() + _FORK_S
        has_begun = False
        while self._alive:
            if not has_begun and self._forked == self.world_size:
                has_begun, deadline = True, time.monotonic() + timeout
            until = deadline if self._settled is None else min(self._settled, deadline)
            if time.monotonic() >= until:
                break
            with interrupts.allowed():
                ready = self._select(until)
            self._handle(ready)
        if any(fate.has_failed for fate in self._fates):
            self._ask_for_stacks()
            raise explain(self._fates, killed_for_memory=_count_memory_kills() > self._memory_kills)
        if self._alive:
            self._ask_for_stacks()
            raise explain(self._fates, timeout=timeout if has_begun else _FORK_S)

    def whereabouts(self):
        """Return what each rank is doing now, as fates."""
        self._ask_for_stacks()
        return self._fates

    def stop(self):
        """Kill what still runs, show the rest of the output and close everything. Returns whether all have ended."""
        try:
            if self._alive:
                self._server.kill()
            deadline = time.monotonic() + (_STOP_S if self._server.has_imported else 0)
            while self._alive and time.monotonic() < deadline:
                self._handle(self._select(deadline))
        except ServerGone:
            self._alive.clear()  # its end has ended them
        self._selector.unregister(self._server)
        outputs = {key.fd for key in self._selector.get_map().values() if key.data[0] == self._read_output}
        deadline = time.monotonic() + 1
        while outputs & set(self._selector.get_map()) and time.monotonic() < deadline:
            self._handle(self._select(deadline))
        for fd in outputs & set(self._selector.get_map()):
            os.close(fd)
        self.output.finish()
        self._selector.close()
        for rank in self._channels:
            self._channels[rank].close()
            os.close(self._stacks[rank])
        return not self._alive

    def _select(self, deadline):
        seconds = min(max(0, deadline - time.monotonic()), 3600)  # epoll refuses infinity
        return [key for key, _ in self._selector.select(seconds)]

    def _handle(self, ready):
        for key in ready:
            if key.fileobj in self._selector.get_map():  # one before it in the list may have read it to its end
                read, rank = key.data
                with contextlib.suppress(BlockingIOError):  # or has read all that was there
                    read(rank, key.fileobj)

    def _read_output(self, rank, fd):
        if not self.output.read(rank, fd):
            self._selector.unregister(fd)
            os.close(fd)

    def _read_channel(self, rank, channel):
        fate = self._fates[rank]
        try:
            messages = channel.receive(wait=False)
        except EOFError:
            self._selector.unregister(channel)
            return
        for (kind, *details), fds in messages:
            if kind == "log":
                self.rows.append((rank, *details))
            elif kind == "returned":
                (fate.time,) = details
                self._take_result(rank, *fds)
            elif kind == "left":
                fate.returned, (fate.time,) = True, details
            elif kind == "raised":
                fate.time, fate.report = details
                self._note_failure(fate)

    def _take_result(self, rank, fd):
        fate = self._fates[rank]
        try:
            self.results[rank] = payload.load(fd)
            fate.returned = True
        except Exception as error:
            fate.report = Report(
                type_name=type(error).__name__,
                message=str(error),
                traceback="",
                frames=(),
                while_doing="rebuilding its result in the notebook: return plain values or tensors",
            )
            self._note_failure(fate)
        finally:
            os.close(fd)

    def _read_server(self, _, server):
        for kind, rank, *details in server.receive():
            if kind == "forked":
                self._forked += 1
            else:
                self._note_end(rank, *details)

    def _note_end(self, rank, code, ended):
        self._alive.discard(rank)
        channel, fate = self._channels[rank], self._fates[rank]
        with contextlib.suppress(BlockingIOError):  # a process of the worker's own may still hold the other end
            while channel in self._selector.get_map():  # what it said before it ended
                self._read_channel(rank, channel)
        if not fate.returned and fate.report is None:
            fate.died, fate.time = code, ended
            fate.frames = frames_of_dump(self._dump(rank))
            self._note_failure(fate)

    def _note_failure(self, fate):
        settle = _SETTLE_LOST_CONNECTION_S if fate.has_lost_connection else _SETTLE_S
        if all(each.has_failed or each.returned for each in self._fates):
            settle = 0
        until = time.monotonic() + settle
        self._settled = until if self._settled is None else min(self._settled, until)

    def _ask_for_stacks(self):
        """Have every rank that still computes or waits write down where it is."""
        asked = [rank for rank in sorted(self._alive) if self._fates[rank].report is None]
        if not asked or not self._server.has_imported:
            return
        sizes = {rank: len(self._dump(rank)) for rank in asked}
        self._server.signal(asked, STACK_SIGNAL)
        deadline = time.monotonic() + _STACKS_S
        pending, seen = set(asked), dict(sizes)
        while pending and time.monotonic() < deadline:
            time.sleep(0.01)
            for rank in list(pending):
                size = len(self._dump(rank))
                if size > sizes[rank] and size == seen[rank]:  # it has answered, and has stopped writing
                    pending.discard(rank)
                seen[rank] = size
        for rank in asked:
            if not self._fates[rank].has_failed:
                self._fates[rank].frames = frames_of_dump(self._dump(rank)[sizes[rank] :])

    def _dump(self, rank):
        return os.pread(self._stacks[rank], 1 << 20, 0).decode(errors="replace")


def _count_memory_kills():
    """How many processes the system has killed for want of memory since it started (Linux)."""
    try:
        with open("/proc/vmstat") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0
