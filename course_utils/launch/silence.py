"""A rank that says nothing for a while is asked where it is, so that a deadlock is seen before time is up."""

import time

from .failure import is_in_torch_distributed

_SILENCE_S = 2.0
_PAUSE_S = 1.0  # from an answer to the next question


class Silence:
    """One rank of a Watch: while it logs and prints nothing, `frames` is where it is, and `waits` whether for others.

    `frames` is () where that is not known, or not asked.
    """

    def __init__(self, watch, rank):
        self._watch, self._rank = watch, rank
        self._said, self._is_asked = None, False
        self._end(time.monotonic())

    def _end(self, now):
        self.frames, self.waits, self._located, self._ask_at = (), False, None, now + _SILENCE_S

    def refresh(self):
        """Ask it, or take its answer, where it is time for that."""
        watch, rank, now = self._watch, self._rank, time.monotonic()
        said = watch.rows.counts[rank], watch.output.counts[rank], rank in watch.begun
        if said != self._said:
            self._said = said
            self._end(now)
        if self._is_asked:  # once, however long C code holds Python's lock
            self._take(watch.located.pop(rank, None), now)
        elif rank in watch.begun and now >= self._ask_at:
            self._is_asked = True
            watch.locate(rank)

    def _take(self, located, now):
        if located is None:
            return
        self._is_asked, self._ask_at = False, now + _PAUSE_S
        # Found twice in the same collective it waits there; found once, it may just have come.
        self.waits = located == self._located and is_in_torch_distributed(located.frames)
        self.frames, self._located = located.frames, located
