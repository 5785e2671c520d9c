"""What is known about the ranks of one launch, however they were started: results, rows, output and exits."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from ...processes import interrupts, payload
from ..forkserver.protocol import (
    Asked,
    Began,
    Described,
    Left,
    Locate,
    Located,
    Logged,
    Raised,
    Reached,
    Recall,
    Recalled,
    Report,
    Returned,
)
from .outcome import Outcome, frames_of_dump
from .rows import Rows
from .streams import Output

# After a first failure, wait for others to report theirs; longer after a lost connection, whose cause is another rank.
_SETTLE_S, _SETTLE_LOST_CONNECTION_S = 0.1, 1.0


class Quiet(float):
    """A time limit in seconds that begins anew whenever a rank logs, prints or returns something."""


class Watch:
    """Collects the outcomes of `world_size` ranks; a subclass delivers their messages and asks where they are."""

    def __init__(self, world_size, stream=None, keeps_going=False):
        self.world_size, self.keeps_going = world_size, keeps_going
        self.pids = {}  # {rank: pid} of the ranks on this machine
        self.display = None  # a Display, refreshed while the ranks run
        self.output = Output(world_size, stream)
        self.begun = set()
        self.is_stopping = False
        self.interrupted = set()  # ranks that have raised while we were stopping them
        Watch.begin_anew(self)  # not the subclass's method: it is not initialised yet

    def begin_anew(self) -> None:
        """Reset results, rows and outcomes: the ranks are about to serve a request."""
        self.results: list[Any] = [None] * self.world_size
        self._takes_results = True
        self.rows = Rows(self.world_size)
        self.outcomes = [Outcome(rank) for rank in range(self.world_size)]
        self.located: dict[int, Located] = {}  # the latest of each rank
        self.prompting: dict[int, str] = {}  # rank → prompt of its debugger, which waits for a line
        self.paused_s = 0.0  # seconds that the timeout does not count, as at debuggers' prompts
        self.settled: float | None = None  # when to stop waiting for further failures

    def watch(self, timeout: float, start_s: float) -> float:
        """Watch the ranks until all have ended, a first failure has settled, or the deadline.

        Returns the time limit in seconds: `timeout`, counted from when all ranks had begun, or `start_s` if they never
        did.
        """
        deadline, has_begun, paused_s, signs = time.monotonic() + start_s, False, 0.0, None
        while not self.is_over:
            if not has_begun and all(outcome.rank in self.begun or outcome.has_failed for outcome in self.outcomes):
                has_begun, deadline = True, time.monotonic() + timeout
            if has_begun and isinstance(timeout, Quiet) and signs != (signs := self._signs_of_life()):
                deadline = time.monotonic() + timeout
            deadline, paused_s = deadline + self.paused_s - paused_s, self.paused_s
            until = deadline if self.settled is None else min(self.settled, deadline)
            if time.monotonic() >= until:
                break
            if self.display is None:
                self.look(until)
            else:
                self.look(min(until, self.display.due))
                self.display.refresh()
        return timeout if has_begun else start_s

    def _signs_of_life(self):
        returned = sum(outcome.returned for outcome in self.outcomes)
        return sum(self.rows.counts), sum(self.output.counts), returned

    @property
    def is_over(self) -> bool:
        """Whether no more messages can arrive."""
        raise NotImplementedError

    @property
    def is_deaf(self) -> bool:
        """Whether interrupts are delayed."""
        return self.is_stopping

    def look(self, until: float) -> None:
        """Wait for messages until `until` at the latest, allowing interrupts meanwhile, and handle them."""
        raise NotImplementedError

    def hear(self, rank: int, message: object, fds: Sequence[int] = ()) -> None:
        """Handle a message from `rank`, and close the descriptors that came with it."""
        outcome = self.outcomes[rank]
        if isinstance(message, Logged):
            self.rows.add(rank, message)
        elif isinstance(message, Began):
            self.begun.add(rank)
        elif isinstance(message, Reached):
            outcome.phase = message.phase
        elif isinstance(message, Returned):
            outcome.time, outcome.told = message
            self._take_result(rank, *fds)
        elif isinstance(message, Left):
            outcome.returned = True
            outcome.time, outcome.told, outcome.left = message
        elif isinstance(message, Raised):
            if self.is_stopping:  # a result of our interrupt, or of the end of other ranks
                self.interrupted.add(rank)
            else:
                outcome.time, outcome.report, outcome.told = message
                self.note_failure(outcome)
        elif isinstance(message, Described):
            outcome.described = message.frames
        elif isinstance(message, Located):
            self.located[rank] = message
        elif isinstance(message, Recalled):
            outcome.told = message.calls
        elif isinstance(message, Asked):
            self.prompting[rank] = message.prompt

    def _take_result(self, rank, fd):
        """Load a result, which may run the student's code; after an interrupt, this and later results are dropped."""
        outcome = self.outcomes[rank]
        outcome.returned = True
        try:
            if self._takes_results:
                with contextlib.nullcontext() if self.is_deaf else interrupts.allowed():
                    self.results[rank] = payload.load(fd)
        except KeyboardInterrupt:
            self._takes_results = False
            raise
        except Exception as error:
            outcome.returned = False
            doing = "rebuilding its result in the notebook: return plain values or tensors"
            outcome.report = Report(type(error).__name__, str(error), traceback="", frames=(), while_doing=doing)
            self.note_failure(outcome)
        finally:
            os.close(fd)

    def note_end(self, rank: int, code: int, moment: float) -> None:
        """Record that a rank's process has ended: it died, unless it had returned or raised."""
        outcome = self.outcomes[rank]
        self.prompting.pop(rank, None)
        if self.is_stopping:  # we killed it
            return
        if not outcome.returned and outcome.report is None:
            outcome.died, outcome.time = code, moment
            outcome.dumped = frames_of_dump(self.stacks(rank))
            self.note_failure(outcome)

    def interrupt_ranks(self) -> None:
        """Interrupt ranks before they are killed, so that they can save data; only on this machine."""

    def tell(self, rank: int, message: object, fds: Sequence[int] = ()) -> None:
        """Send a message and descriptors to `rank` if it lives; ranks of `launch(…, on=…)` receive none."""

    def locate(self, rank: int) -> None:
        """Ask `rank` for its stack, which goes into `located`."""
        self.tell(rank, Locate())

    def recall(self, rank: int) -> None:
        """Ask `rank` what it has called in torch.distributed, for its outcome."""
        self.tell(rank, Recall())

    def take_until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Handle messages until `condition()`, for `seconds` at most."""
        raise NotImplementedError

    def note_failure(self, outcome: Outcome) -> None:
        if self.display is not None:
            self.display.hurry()
        if self.keeps_going and not all(each.has_failed for each in self.outcomes):
            return
        settle = _SETTLE_LOST_CONNECTION_S if outcome.has_lost_connection else _SETTLE_S
        if all(each.has_failed or each.returned for each in self.outcomes):
            settle = 0
        until = time.monotonic() + settle
        self.settled = until if self.settled is None else min(self.settled, until)

    def ask(self, asked: Sequence[int], signal_ranks: Callable[[Sequence[int]], object], seconds: float) -> None:
        """Have the ranks `asked` dump their stacks, and record these in their outcomes, within about `seconds`.

        `signal_ranks(ranks)` sends the signal that makes them dump.
        """
        sizes = {rank: len(self.stacks(rank)) for rank in asked}
        signal_ranks(asked)
        deadline = time.monotonic() + seconds
        pending, seen = set(asked), dict(sizes)
        while pending and time.monotonic() < deadline:
            time.sleep(0.01)
            for rank in list(pending):
                size = len(self.stacks(rank))
                if size > sizes[rank] and size == seen[rank]:  # it has finished writing
                    pending.discard(rank)
                seen[rank] = size
        for rank in asked:
            if not self.outcomes[rank].has_failed:
                self.outcomes[rank].dumped = frames_of_dump(self.stacks(rank)[sizes[rank] :])

    def may_say_where(self, outcome: Outcome) -> bool:
        """Return whether this rank, if it still runs, is to say where it is."""
        return outcome.report is None

    def whereabouts(self) -> list[Outcome]:
        """Have every rank that still runs say where it is, and return the outcomes."""
        raise NotImplementedError

    def stacks(self, rank: int) -> str:
        """Return all that faulthandler has written in `rank`."""
        raise NotImplementedError
