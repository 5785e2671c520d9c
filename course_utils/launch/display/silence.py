"""Asks a rank that has been silent for a while where it is, so that a deadlock shows before the timeout."""

import time

from ..watch.outcome import is_in_torch_distributed

_SILENCE_S = 2.0
_PAUSE_S = 1.0  # from an answer to the next question


class Silence:
    """The state of a rank that logs and prints nothing: `frames` is its stack, `waits` whether it waits for others.

    `frames` is () if the stack is not known, or was not asked for. A rank that stays where it is is asked once what it
    has called, for its outcome; again and again if its last collective has not finished, as in DDP's backward.
    """

    def __init__(self, watch, rank):
        self._watch, self._rank = watch, rank
        self._said, self._is_asked = None, False
        self._end(time.monotonic())

    def _end(self, now):
        self.frames, self.waits, self._ask_at = (), False, now + _SILENCE_S
        self._move(None)

    def _move(self, located):
        """Note that the rank is, or may be, at another place than before."""
        outcome, self._located = self._watch.outcomes[self._rank], located
        if not outcome.returned and not outcome.has_failed:
            outcome.told = None

    def refresh(self) -> None:
        """Ask for the rank's stack, or take its answer, if it is time."""
        watch, rank, now = self._watch, self._rank, time.monotonic()
        said = watch.rows.counts[rank], watch.output.counts[rank], rank in watch.begun
        if said != self._said:
            self._said = said
            self._end(now)
        if self._is_asked:  # no second question while C code holds the GIL
            self._take(watch.located.pop(rank, None), now)
        elif rank in watch.begun and now >= self._ask_at:
            self._is_asked = True
            watch.locate(rank)

    def _take(self, located, now):
        if located is None:
            return
        self._is_asked, self._ask_at = False, now + _PAUSE_S
        # A rank seen twice in the same collective waits there; one seen once may have just arrived.
        stays = located == self._located
        self.waits = stays and is_in_torch_distributed(located.frames)
        self.frames = located.frames
        if not stays:
            self._move(located)
        elif (outcome := self._watch.outcomes[self._rank]).told is None or outcome.is_in_collective:
            self._watch.recall(self._rank)
