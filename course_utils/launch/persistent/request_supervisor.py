"""Supervises persistent workers on this machine: sends them requests, and restarts those that cannot go on."""

import signal
import time
from collections.abc import Sequence

from ..forkserver.protocol import Signal
from ..watch.errors import LauncherError
from ..watch.supervisor import Supervisor
from .requests import Requests

_HEED_S = 0.5  # for an interrupted rank to stop; in C++ it cannot
_DRAIN_S = 0.5
_END_S = 5.0


class RequestSupervisor(Requests, Supervisor):
    """Supervises workers that serve requests, forked by this machine's forkserver."""

    def note_request(self) -> None:
        self.forget_memory_kills()  # slow, so done while they work

    def drain(self) -> None:
        """Handle what has already arrived: output, messages and exits."""
        deadline = time.monotonic() + _DRAIN_S  # a worker's thread may never stop printing
        while (ready := self.select(0)) and time.monotonic() < deadline:
            self.take(ready)

    def interrupt(self) -> None:
        """Interrupt busy ranks with SIGINT; those that wait in C++ do not stop."""
        self.prompting.clear()
        if self.busy:
            self.handle.send(Signal(tuple(self.busy), int(signal.SIGINT)))
            self.take_until(lambda: not self.busy, _HEED_S)

    def restart(self, ranks: Sequence[int], surroundings_fd: int, call_fd: int) -> None:
        """Kill those of `ranks` that are still alive, and start all of `ranks` again.

        Raises LauncherError if a killed rank does not end.
        """
        self.is_stopping = True
        self.number += 1  # late answers to the last request are ignored
        living = tuple(rank for rank in ranks if rank in self.alive)
        self.handle.send(Signal(living, int(signal.SIGKILL)))
        self.take_until(lambda: not self.alive.intersection(living), _END_S)
        self.is_stopping = False
        if self.alive.intersection(living):
            raise LauncherError("a rank that was killed has not ended, perhaps because its disk or its GPU hangs")
        self.given_fds = surroundings_fd, call_fd
        self.astray.difference_update(ranks)
        for rank in ranks:
            self.forget_rank(rank)
            self.gone.pop(rank, None)
            self.start_rank(rank)
