"""A device that works later, as a GPU does, and remembers what was waited for."""

import time
from dataclasses import dataclass

from ..expect import expect


@dataclass(frozen=True)
class Wait:
    """`seconds` from the end of one `synchronize()` to that of the next, for `num_steps` of the length `asked` after `num_before`."""

    num_before: int
    num_steps: int
    asked: float
    seconds: float


class LateDevice:
    """Works through its steps in order, each as long as the next of `lengths` (seconds), after `older_work_s` of older work.

    `waits` holds a Wait for each `synchronize()` that had steps to wait for. They are timed by a real clock, next to where
    the answer reads its own, so a busy machine disturbs both alike; and an answer may use any clock that there is.
    """

    def __init__(self, lengths, older_work_s):
        self.num_steps, self.waits, self.has_waited = 0, [], False
        self.is_idle_at_first = False  # whether the older work was waited for before the first step was asked for
        self._lengths, self._begin, self._num_before = lengths, time.perf_counter(), 0
        self._done_at, self._asked = self._begin + older_work_s, 0.0

    def step(self):
        expect(self.num_not_waited_for < 100_000, "step() was called 100,000 times without waiting: does the loop end?")
        length = next(self._lengths)
        self._done_at = max(self._done_at, time.perf_counter()) + length
        self.num_steps, self._asked = self.num_steps + 1, self._asked + length

    def synchronize(self):
        while (left := self._done_at - time.perf_counter()) > 0:
            time.sleep(left)
        end, self.has_waited = time.perf_counter(), True
        if self.num_not_waited_for:
            self.waits.append(Wait(self._num_before, self.num_not_waited_for, self._asked, end - self._begin))
        self.is_idle_at_first |= self.num_steps == 0
        self._begin, self._num_before, self._asked = end, self.num_steps, 0.0

    @property
    def num_not_waited_for(self):
        return self.num_steps - self._num_before
