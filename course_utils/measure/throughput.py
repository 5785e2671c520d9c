"""Timing steps, alone or in turn: devices synchronised, warm-up left out, a median with the middle half."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .. import hardware

# `step(phase)`, which wraps its parts in `with phase("forward"):`
PhasedStep = Callable[[Callable[[str], contextlib.AbstractContextManager[object]]], object]


@dataclass(frozen=True)
class Timing:
    """Seconds of each repeat of a step over `num_samples` samples; a repeat may be the mean of `block` calls."""

    seconds: tuple[float, ...]
    num_samples: float = 1
    block: int = 1

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def samples_per_s(self) -> float:
        return self.num_samples / self.median_s

    @property
    def middle_half_s(self) -> tuple[float, float]:
        """The quartiles, in seconds: half of the repeats lie between them."""
        return quartiles(self.seconds)[::2]

    @property
    def samples_per_s_half(self) -> tuple[float, float]:
        """The middle half in samples/s, the slower rate first."""
        quick_s, slow_s = self.middle_half_s
        return self.num_samples / slow_s, self.num_samples / quick_s

    def __str__(self):
        digits = 1 if self.median_s >= 0.01 else 3
        low, middle, high = (f"{1e3 * s:.{digits}f}" for s in quartiles(self.seconds))
        blocks = f" blocks of {self.block}" if self.block > 1 else ""
        return f"{middle} ms (median of {len(self.seconds)}{blocks}, half of them {low}–{high})"


def quartiles(values: Iterable[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile of `values`; of one value, three times that."""
    values = list(values)
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * values
    return low, middle, high


def ratio(first: Timing, second: Timing) -> tuple[float, float, float]:
    """Return the quartiles of `first` over `second`, both from one `in_turn`: a ratio for each pair of repeats."""
    return quartiles(a / b for a, b in zip(first.seconds, second.seconds, strict=True))


def now(device: torch.device | str | None = None) -> float:
    """Return time.perf_counter() in seconds, read after synchronising `device`, or every GPU in use."""
    if device is None:
        hardware.wait_for_gpus()
    elif torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def measure(
    step: Callable[[], object], num_samples: float = 1, warmup: int = 2, repeats: int = 7, block_s: float = 0.0
) -> Timing:
    """Time `step()`, which handles `num_samples` samples, `repeats` times after `warmup` calls.

    The GPU is synchronised before each clock reading, so a step timed alone includes a wait that training does not
    have: there Python runs ahead and queues the next step. With `block_s`, a repeat is a block of enough steps to fill
    that many seconds, at least one, with one synchronisation at its end; the timing is per step.

    In a worker every rank must call it, without `block_s`, since ranks would choose different numbers of steps. The
    collectives in `step` keep the ranks together.
    """
    for _ in range(warmup):
        step()
    block = block_length(step, block_s) if block_s else 1
    return Timing(tuple(time_block(step, block) for _ in range(repeats)), num_samples, block)


def graph_of(call: Callable[[], object], num_calls: int) -> Callable[[], object]:
    """Return a function that lets the GPU run `call` `num_calls` times: Python asks for all of them at once.

    They are recorded as a CUDA graph. `call` must have been made before, since what is not loaded yet cannot be
    recorded.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(num_calls):
            call()
    return graph.replay


def in_turn(
    steps: Mapping[Any, Callable[[], object]],
    rounds: int = 7,
    num_samples: float | Mapping[Any, float] = 1,
    warmup: int | Mapping[Any, int] = 1,
    repeats: int | Mapping[Any, int] = 1,
    block_s: float = 0.0,
) -> dict[Any, Timing]:
    """Time each step of {name: step} in every round, so that a slow moment hits them all; return {name: Timing}.

    A turn is `warmup` untimed steps, then `repeats` timed ones, or blocks as in `measure`, whose length is estimated
    once. Numbers may differ by step, as {name: number}. In a worker every rank must call it, without `block_s`. The
    ranks meet before each turn, so a rank whose step does nothing stays idle while the others work.
    """
    if block_s:
        for step in steps.values():
            step()  # the first call is slower, and would make the blocks too short
    blocks = {name: block_length(step, block_s) if block_s else 1 for name, step in steps.items()}
    seconds: dict[Any, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            if dist.is_initialized():
                dist.barrier()
            for _ in range(_of(warmup, name)):
                step()
            seconds[name] += [time_block(step, blocks[name]) for _ in range(_of(repeats, name))]
    return {name: Timing(tuple(each), _of(num_samples, name), blocks[name]) for name, each in seconds.items()}


def _of(numbers, name):
    return numbers[name] if isinstance(numbers, Mapping) else numbers


def block_length(step: Callable[[], object], block_s: float) -> int:
    """The number of calls of `step` that fill `block_s` seconds, at least one, from the shortest of three calls.

    After a single call that the system held up, a block would be one step.
    """
    return max(1, round(block_s / min(time_block(step, 1) for _ in range(3))))


def time_block(step: Callable[[], object], length: int) -> float:
    """The mean seconds of `step` over `length` calls, with one GPU synchronisation before and one after."""
    begin = now()
    for _ in range(length):
        step()
    return (now() - begin) / length


@dataclass(frozen=True)
class Phases:
    """The result of `measure_phases`: a Timing per phase, one of the step with marks, and one without."""

    phases: dict[str, Timing]
    step: Timing
    unmarked_step: Timing

    @property
    def covered(self) -> float:
        """The share of the step that lies in some phase: the median over the repeats."""
        sums = [sum(seconds) for seconds in zip(*(timing.seconds for timing in self.phases.values()))]
        return statistics.median(a / b for a, b in zip(sums, self.step.seconds))

    @property
    def marks_cost(self) -> bool:
        """Whether steps with marks took longer than those without, by more than the spread of either."""
        return self.step.middle_half_s[0] > self.unmarked_step.middle_half_s[1]

    def __str__(self):
        rows = [f"{name:10s} {timing}" for name, timing in {**self.phases, "step": self.step}.items()]
        return "\n".join(rows)


def measure_phases(step: PhasedStep, num_samples: float = 1, warmup: int = 2, repeats: int = 7) -> Phases:
    """Time the parts of `step(phase)`, which wraps each in `with phase("forward"):`.

    A phase may be entered several times in a step; its times add up. On a GPU the marks are events in the current
    stream: nothing waits inside the step, and a phase lasts as long as the GPU worked on it or waited for it. The GPU
    is synchronised after each step, so Python cannot run ahead into the next one. Every marked step is followed by one
    without marks, which shows their overhead. Raises ValueError for nested phases and for a step without phases.
    """
    marks = _Marks()
    for _ in range(warmup):
        marks.restart()
        step(marks)
    marked, unmarked, phases = [], [], []
    for _ in range(repeats):
        marks.restart()
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
    """The begin and end of each phase of one step: events on a GPU, clock readings elsewhere.

    The events are made in the first step and recorded again in each later one, since making one takes time.
    """

    def __init__(self):
        self._events = []

    def restart(self):
        self._on_gpu = bool(hardware.gpus_in_use())
        self._open, self._spans, self._num_used = None, [], 0

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
        if self._num_used == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))
        event = self._events[self._num_used]
        self._num_used += 1
        event.record()
        return event

    def seconds(self):
        """The seconds of each phase, {phase: seconds}; on a GPU call it after a synchronisation."""
        total = {}
        for name, begin, end in self._spans:
            spent = begin.elapsed_time(end) / 1e3 if self._on_gpu else end - begin
            total[name] = total.get(name, 0.0) + spent
        return total
