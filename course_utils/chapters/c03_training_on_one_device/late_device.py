"""A simulated device that works asynchronously, as a GPU does, and the clocks it runs by."""

import contextlib
import time
from dataclasses import dataclass

from ...checks.expect import expect


class PlayedClock:
    """A simulated clock, which the machine's load cannot disturb.

    It advances while the device is waited for, and by 1 µs with each reading.
    """

    def __init__(self):
        self.num_readings, self._now = 0, 1000.0

    def now(self):
        return self._now

    def wait(self, seconds):
        self._now += seconds

    def _read(self):
        self.num_readings += 1
        self._now += 1e-6
        return self._now

    @contextlib.contextmanager
    def shown_to(self, function):
        """Replace `time`'s clocks by this one inside the block, even where `function`'s cell imported them by name."""
        stand_ins = {getattr(time, name): self._read for name in ("perf_counter", "monotonic", "time")}
        stand_ins |= {
            getattr(time, f"{clock.__name__}_ns"): lambda: int(1e9 * self._read()) for clock in tuple(stand_ins)
        }
        stand_ins[time.sleep] = self.wait
        spaces = vars(time), getattr(function, "__globals__", {})
        real = [
            (space, name, value) for space in spaces for name, value in space.items() if type(value) is type(time.sleep)
        ]
        try:
            for space, name, value in real:
                space[name] = stand_ins.get(value, value)
            yield
        finally:
            for space, name, value in real:
                space[name] = value


class RealClock:
    """The machine's own clock, for answers that read a clock other than `time`'s."""

    num_readings, now, wait = None, staticmethod(time.perf_counter), staticmethod(time.sleep)

    def shown_to(self, function):
        return contextlib.nullcontext()


@dataclass(frozen=True)
class Wait:
    """`num_steps` steps that one `synchronize()` waited for, after `num_before` earlier ones.

    `asked` is their total length, and `seconds` the time since the `synchronize()` before.
    """

    num_before: int
    num_steps: int
    asked: float
    seconds: float


class LateDevice:
    """A device that does its steps in order, after `older_work_s` seconds of older work.

    A step takes the next of `lengths` (seconds). `waits` holds a Wait for each `synchronize()` that had steps to wait
    for.
    """

    def __init__(self, clock, lengths, older_work_s):
        self.num_steps, self.waits, self.has_waited = 0, [], False
        self.is_idle_at_first = False  # was the older work waited for before the first step?
        self._clock, self._lengths, self._begin, self._num_before = clock, lengths, clock.now(), 0
        self._done_at, self._asked = self._begin + older_work_s, 0.0

    def step(self):
        expect(self.num_not_waited_for < 100_000, "step() was called 100,000 times without waiting: does the loop end?")
        length = next(self._lengths)
        self._done_at = max(self._done_at, self._clock.now()) + length
        self.num_steps, self._asked = self.num_steps + 1, self._asked + length

    def synchronize(self):
        while (left := self._done_at - self._clock.now()) > 0:
            self._clock.wait(left)
        end, self.has_waited = self._clock.now(), True
        if self.num_not_waited_for:
            self.waits.append(Wait(self._num_before, self.num_not_waited_for, self._asked, end - self._begin))
        self.is_idle_at_first |= self.num_steps == 0
        self._begin, self._num_before, self._asked = end, self.num_steps, 0.0

    @property
    def num_not_waited_for(self):
        return self.num_steps - self._num_before
