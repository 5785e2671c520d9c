"""Requests to persistent workers, however they were started: what is sent, who has answered, who waits for whom."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import psutil

from ..forkserver.protocol import Answered, Ask, Raised, Returned
from ..watch.common import Watch
from ..watch.outcome import is_in_torch_distributed
from ..watch.supervisor import START_S

if TYPE_CHECKING:
    from ..display.columns import Columns
    from ..watch.outcome import Outcome
    from ..watch.streams import Output

_LOOK_AGAIN_S = 0.25
_ANSWER_S = 0.2
# A rank that is idle this long counts as waiting, even outside torch.distributed: DDP waits in backward().
_IDLE_S = 2.0
_IDLE_SHARE = 0.2  # of a core, below which a rank is idle
_SPINNING_S = 10.0  # at one line, until a rank counts as waiting although it uses a core


class _Stay:
    """How long a rank has been at one place: a Located, or None in C code that holds the GIL.

    A rank without a pid is on another machine, where it may be using a core.
    """

    def __init__(self, place, pid):
        self.place, self._pid = place, pid
        self._since = self._idle_since = time.monotonic()
        self._cpu_s = _cpu_seconds(pid)

    def look(self):
        """Restart the idle time if the rank has used a core since the last look."""
        now, cpu_s = time.monotonic(), _cpu_seconds(self._pid)
        if self._pid is None or cpu_s - self._cpu_s > _IDLE_SHARE * (now - self._idle_since):
            self._idle_since, self._cpu_s = now, cpu_s

    def is_long(self, spins):
        """Return whether the rank counts as waiting; `spins`: waiting may use a core, as NCCL does."""
        now, spins = time.monotonic(), spins or self._pid is None
        if self.place is not None and is_in_torch_distributed(self.place.frames):
            return now - self._since >= _LOOK_AGAIN_S
        return now - self._idle_since >= _IDLE_S or spins and now - self._since >= _SPINNING_S


def _cpu_seconds(pid):
    if pid is None:
        return 0.0
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:  # it has just ended
        return 0.0
    return times.user + times.system


class Requests(Watch):
    """A Watch of ranks that serve requests; a subclass also derives from the Watch that reaches them.

    Call `start`, then `request`, and always `stop`.
    """

    start_s = START_S  # seconds that the ranks have to begin

    def __init__(self, *args):
        super().__init__(*args)
        self.number, self._asked = 0, ()
        self.gone = {}  # rank → exit code, or minus the signal's number, of ranks that have ended
        self.astray = set()  # ranks that are alive but cannot answer any more
        self.collectives = {}  # rank → {process group: number of its collectives}

    def note_request(self) -> None:
        """Prepare for the watch, once the ranks have their request."""

    def drain(self) -> None:
        """Handle what has already arrived: output, messages and exits."""
        raise NotImplementedError

    def interrupt(self) -> None:
        """Interrupt busy ranks with SIGINT; those that wait in C++ do not stop."""
        raise NotImplementedError

    def request(
        self,
        fds: Mapping[int, int],
        timeout: float,
        output: Output,
        display: Columns | None = None,
        can_be_interrupted: bool = False,
    ) -> float:
        """Send the calls in {rank: payload of (function, args, kwargs)}; return the time limit in seconds.

        Returns when all have answered, at the timeout, or shortly after a first failure. What ranks print goes to
        `output`; `display` is refreshed meanwhile. `can_be_interrupted` says whether `interrupt` stops them.
        """
        self.begin_anew()
        self.number += 1
        self._asked, self.output, self.display = tuple(fds), output, display
        if display is not None:
            display.begin(self.outcomes, self.rows)
        for rank, fd in fds.items():
            self.outcomes[rank].died = self.gone.get(rank)
            self.tell(rank, Ask(self.number, can_be_interrupted), [fd])
        self.note_request()
        seconds = self.watch(timeout, self.start_s)
        self.drain()
        return seconds

    @property
    def asked(self) -> list[Outcome]:
        """The outcomes of the ranks of this request."""
        return [self.outcomes[rank] for rank in self._asked]

    @property
    def busy(self) -> list[int]:
        return [outcome.rank for outcome in self.asked if not outcome.returned and not outcome.has_failed]

    @property
    def have_failed(self) -> bool:
        return any(outcome.has_failed for outcome in self.asked)

    @property
    def was_quit(self) -> bool:
        """Whether the student has quit a rank's debugger."""
        return any(outcome.has_quit for outcome in self.asked)

    def account(self) -> list[Outcome]:
        """Return copies of this request's outcomes as they are now, since recovery changes `outcomes`."""
        for outcome in self.outcomes:  # ranks that have answered can be asked, too
            if outcome.died is None:
                outcome.told = None
        self.whereabouts()
        return [copy.copy(outcome) for outcome in self.asked]

    @property
    def is_over(self) -> bool:
        return not self.busy

    def hear(self, rank: int, message: object, fds: Sequence[int] = ()) -> None:
        if not isinstance(message, Answered):
            if isinstance(message, Raised):  # its request loop itself crashed
                self.astray.add(rank)
            super().hear(rank, message, fds)
            return
        self.collectives[rank] = message.collectives
        if not message.is_well:
            self.astray.add(rank)
        if message.number != self.number:
            for fd in fds:
                os.close(fd)
        elif message.report is None:
            super().hear(rank, Returned(message.time), fds)
        else:
            super().hear(rank, Raised(message.time, message.report))

    def note_failure(self, outcome: Outcome) -> None:
        if outcome.rank in self._asked:
            super().note_failure(outcome)

    def note_end(self, rank: int, code: int, moment: float) -> None:
        self.gone[rank] = code
        self.begun.discard(rank)
        super().note_end(rank, code, moment)

    def may_say_where(self, outcome: Outcome) -> bool:
        return outcome.rank in self.busy

    def wait_for_others(self, deadline: float, spins: bool) -> None:
        """Wait, after a failure, until the other ranks are done, or all that are left count as waiting.

        `spins`: waiting may use a core, as with NCCL.
        """
        stays: dict[int, _Stay] = {}
        silent: set[int] = set()  # ranks that have not answered yet
        while self.busy and time.monotonic() < deadline + self.paused_s:
            for rank, place in self._places(silent).items():
                if rank in stays and stays[rank].place == place:
                    stays[rank].look()
                else:
                    stays[rank] = _Stay(place, self.pids.get(rank))
            if all(rank in stays and stays[rank].is_long(spins) for rank in self.busy):
                return
            until = time.monotonic() + _LOOK_AGAIN_S
            while self.busy and time.monotonic() < until:
                self.look(until)
                if self.display is not None:
                    self.display.refresh()

    def _places(self, silent):
        """Return {busy rank: its Located}, with None for ranks that do not answer; these are put into `silent`."""
        for rank in self.busy:
            if rank not in silent:  # it still has the first question to answer
                self.locate(rank)
        self.take_until(lambda: all(rank in self.located for rank in self.busy), _ANSWER_S)
        places = {rank: self.located.pop(rank, None) for rank in self.busy}
        silent.clear()
        silent.update(rank for rank, place in places.items() if place is None)
        return places

    @property
    def unequal_groups(self) -> list[str]:
        """Names of the process groups whose members count different numbers of collectives or messages."""
        counts: dict[str, set[int | None]] = {}
        for each in self.collectives.values():
            for name, count in each.items():
                counts.setdefault(name, set()).add(count)
        return sorted(name for name, found in counts.items() if len(found) > 1)
