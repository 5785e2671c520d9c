"""Watches persistent workers: they serve one request after another, and those that cannot go on are restarted."""

import contextlib
import os
import signal
import time

from .failure import Fate, LauncherError, is_in_torch_distributed
from .protocol import Answered, Ask, Raised, Returned, Signal
from .supervisor import Supervisor

_LOOK_AGAIN_S = 0.25
_HEED_S = 0.5  # for an interrupted rank to stop, unless it waits in C++
_DRAIN_S = 0.5
_END_S = 5.0
_START_S = 120.0


class Residents(Supervisor):
    """The workers of `Ranks`. `start`, then requests, and `stop` in any case."""

    def __init__(self, handle, world_size, folder, surroundings_fd, call_fd):
        super().__init__(handle, world_size, folder, surroundings_fd, call_fd)
        self._number, self._asked = 0, ()
        self.gone = {}  # rank → exit code, or minus the signal, of those that have ended
        self.collectives = {}  # rank → how many its process group has run

    def request(self, fds, timeout, output):
        """Ask each rank in {rank: payload of (function, args, kwargs)}; return the seconds they had.

        Returns when all have answered, when time is up, or shortly after a first failure. What they print goes to
        `output`, an Output.
        """
        self._number += 1
        self._asked = tuple(fds)
        self.fates = [Fate(rank) for rank in range(self.world_size)]
        self.results, self.settled, self.output = [None] * self.world_size, None, output
        for rank, fd in fds.items():
            with contextlib.suppress(OSError):  # it has just ended, as we shall hear
                self.channels[rank].send(Ask(self._number), [fd])
        seconds = self.watch(timeout, _START_S)
        self.drain()
        return seconds

    @property
    def asked(self):
        """The fates of the ranks of this request."""
        return [self.fates[rank] for rank in self._asked]

    @property
    def busy(self):
        return [fate.rank for fate in self.asked if not fate.returned and not fate.has_failed]

    @property
    def is_over(self):
        return not self.busy

    def hear(self, rank, message, fds=()):
        if not isinstance(message, Answered):
            super().hear(rank, message, fds)
            return
        self.collectives[rank] = message.collectives
        if message.number != self._number:
            for fd in fds:
                os.close(fd)
        elif message.report is None:
            super().hear(rank, Returned(message.time), fds)
        else:
            super().hear(rank, Raised(message.time, message.report))

    def note_failure(self, fate):
        if fate.rank in self._asked:
            super().note_failure(fate)

    def note_end(self, rank, code, moment):
        self.gone[rank] = code
        self.begun.discard(rank)
        super().note_end(rank, code, moment)

    def may_say_where(self, fate):
        return fate.rank in self.busy

    def drain(self):
        """Take what has already arrived: output, and news of ranks that have ended."""
        deadline = time.monotonic() + _DRAIN_S  # a thread of a worker may never stop printing
        while (ready := self.select(0)) and time.monotonic() < deadline:
            self.take(ready)

    def wait_for_others(self, deadline):
        """After a failure, wait until those still computing are done too, or all that are left wait for one another."""
        before = None
        while self.busy and time.monotonic() < deadline:
            places = [(rank, self.whereabouts()[rank].frames) for rank in self.busy]
            if places == before and all(is_in_torch_distributed(frames) for _, frames in places):
                break
            before = places
            until = min(deadline, time.monotonic() + _LOOK_AGAIN_S)
            while self.busy and time.monotonic() < until:
                self.look(until)

    def interrupt(self):
        """Interrupt what is running, as a cell is interrupted, in ranks that do not wait in C++."""
        if self.busy:
            self.handle.send(Signal(tuple(self.busy), int(signal.SIGINT)))
            self.take_until(lambda: not self.busy, _HEED_S)

    def restart(self, ranks, surroundings_fd, call_fd):
        """Kill those of `ranks` that are still alive, and start all of them again."""
        self.is_stopping = True
        self._number += 1  # late answers to the last request are ignored
        living = tuple(rank for rank in ranks if rank in self.alive)
        self.handle.send(Signal(living, int(signal.SIGKILL)))
        self.take_until(lambda: not self.alive.intersection(living), _END_S)
        self.is_stopping = False
        if self.alive.intersection(living):
            raise LauncherError("a rank that was killed has not ended, perhaps because its disk or its GPU hangs")
        self.given_fds = surroundings_fd, call_fd
        for rank in ranks:
            self.forget_rank(rank)
            self.gone.pop(rank, None)
            self.start_rank(rank)
