"""Clocks that do not lie: devices are synchronised before one is read, warm-up is thrown away, and it is repeated."""

import contextlib
import statistics
import time
from dataclasses import dataclass

import torch

from .. import hardware


@dataclass(frozen=True)
class Timing:
    """Seconds of each repeat of something that handles `num_samples` samples;
    a repeat may be the mean of `block` calls.
    """

    seconds: tuple
    num_samples: int = 1
    block: int = 1

    @property
    def median_s(self):
        return statistics.median(self.seconds)

    @property
    def samples_per_s(self):
        return self.num_samples / self.median_s

    @property
    def samples_per_s_range(self):
        """The slowest and the fastest repeat, in samples/s."""
        return self.num_samples / max(self.seconds), self.num_samples / min(self.seconds)

    def __str__(self):
        digits = 1 if self.median_s >= 0.01 else 3
        low, middle, high = (f"{1e3 * s:.{digits}f}" for s in (min(self.seconds), self.median_s, max(self.seconds)))
        blocks = f" blocks of {self.block}" if self.block > 1 else ""
        return f"{middle} ms (median of {len(self.seconds)}{blocks}, {low}–{high})"


def now(device=None):
    """Return the seconds of a clock that is read only when every GPU in use, or `device`, has done
    all that was asked of it.
    """
    if device is None:
        hardware.wait_for_gpus()
    elif torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def measure(step, num_samples=1, warmup=2, repeats=7, block_s=0.0):
    """Time `step()`, which handles `num_samples` samples, `repeats` times after `warmup` calls.

    A GPU is waited for before each reading of the clock, so a step timed alone holds a wait that training does not
    have: training lets Python run ahead and ask for the next step while the GPU is at this one. With `block_s`, a
    repeat is a block of as many steps as fill so many seconds, at least one, with one wait at its end; the timing says
    how long one step took.

    In a worker every rank calls it alike, and without `block_s`, since ranks would count differently many steps: the
    collectives in `step` keep the ranks together.
    """
    for _ in range(warmup):
        step()
    block = block_length(step, block_s) if block_s else 1
    return Timing(tuple(time_block(step, block) for _ in range(repeats)), num_samples, block)


def block_length(step, block_s):
    """How many calls of `step` fill `block_s` seconds, at least one, judged by one call."""
    return max(1, round(block_s / time_block(step, 1)))


def time_block(step, length):
    """The seconds of one call of `step` in a block of `length`, with one wait for the GPUs before
    it and one at its end.
    """
    begin = now()
    for _ in range(length):
        step()
    return (now() - begin) / length


@dataclass(frozen=True)
class Phases:
    """What `measure_phases` found: a Timing for each phase, one for the step with its marks,
    one for it without them.
    """

    phases: dict
    step: Timing
    unmarked_step: Timing

    @property
    def covered(self):
        """The share of the step that lies in some phase, the median over the repeats."""
        sums = [sum(seconds) for seconds in zip(*(timing.seconds for timing in self.phases.values()))]
        return statistics.median(a / b for a, b in zip(sums, self.step.seconds))

    def __str__(self):
        rows = [f"{name:10s} {timing}" for name, timing in {**self.phases, "step": self.step}.items()]
        return "\n".join(rows)


def measure_phases(step, num_samples=1, warmup=2, repeats=7):
    """Time the parts of `step(phase)`, which puts each of them under a `with phase("forward"):`.

    A phase may be entered several times in a step; its times add up. On a GPU the marks are events in the current
    stream: nothing waits inside the step, and a phase is as long as the GPU was at it or waited for it. Every marked
    step is followed by one without marks, so that their price is seen. Raises ValueError for a phase within a phase,
    and for a step that has none.
    """
    for _ in range(warmup):
        step(_no_marks)
    marked, unmarked, phases = [], [], []
    for _ in range(repeats):
        marks = _Marks()
        begin = now()
        step(marks)
        marked.append(now() - begin)
        phases.append(marks.seconds())
        begin = now()
        step(_no_marks)
        unmarked.append(now() - begin)
    names = list(dict.fromkeys(name for seconds in phases for name in seconds))
    if not names:
        raise ValueError('the step has no phases: put its parts under `with phase("forward"):` and the like')
    timings = {name: Timing(tuple(seconds.get(name, 0.0) for seconds in phases), num_samples) for name in names}
    return Phases(timings, Timing(tuple(marked), num_samples), Timing(tuple(unmarked), num_samples))


def _no_marks(name):
    return contextlib.nullcontext()


class _Marks:
    """The begin and end of each phase of one step: events on a GPU, clock readings elsewhere."""

    def __init__(self):
        self._on_gpu = bool(hardware.gpus_in_use())
        self._open, self._spans = None, []

    @contextlib.contextmanager
    def __call__(self, name):
        if self._open is not None:
            raise ValueError(f"phase {name!r} begins inside phase {self._open!r}: phases follow one another")
        self._open, begin = name, self._mark()
        try:
            yield
        finally:
            self._spans.append((name, begin, self._mark()))
            self._open = None

    def _mark(self):
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self):
        """{phase: its seconds}; on a GPU after a synchronisation."""
        total = {}
        for name, begin, end in self._spans:
            spent = begin.elapsed_time(end) / 1e3 if self._on_gpu else end - begin
            total[name] = total.get(name, 0.0) + spent
        return total
