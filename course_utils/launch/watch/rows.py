"""What ranks have logged, in bounded memory: beyond a limit, every other row is kept, then one in four, and so on."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

from .outcome import names_of

if TYPE_CHECKING:
    from ..forkserver.protocol import Logged

_MOST = 100_000
_MOST_DOUBTS = 3  # names of which it is told that they were nan
_MOST_SAMPLES = 2**53  # in one row; beyond it, floats cannot count by one


class Rows:
    """The rows of `run.metrics`; iterating gives (rank, Logged) in order of arrival."""

    def __init__(self, world_size):
        self.counts = [0] * world_size  # of all rows of a rank
        self.samples = [0] * world_size  # the sum of `log(samples=…)`, 0 if it was never given
        self.latest = [None] * world_size  # the latest Logged of a rank
        self.totals = [None] * world_size  # the latest `log(total=…)`: the number of steps
        self._kept, self._every = [], 1
        self._not_finite = {}  # name → {rank: (step, value)} of the first value that was nan or infinite

    def add(self, rank: int, logged: Logged) -> None:
        number = self.counts[rank]
        self.counts[rank] = number + 1
        self.latest[rank] = logged
        values = logged.values
        samples = values.get("samples")
        if isinstance(samples, (int, float)) and 0 <= samples < _MOST_SAMPLES:  # no NaN either
            self.samples[rank] += samples
        if "total" in values:
            self.totals[rank] = values["total"]
        for name, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                self._not_finite.setdefault(name, {}).setdefault(rank, (logged.step, value))
        if number % self._every == 0:
            self._kept.append((number, rank, logged))
            if len(self._kept) > _MOST:
                self._every *= 2
                self._kept = [row for row in self._kept if row[0] % self._every == 0]

    def __iter__(self):
        return iter([(rank, logged) for _, rank, logged in self._kept])

    def __len__(self):
        return len(self._kept)

    @property
    def note(self) -> str:
        """A sentence about rows that were not kept, or ""."""
        if self._every == 1:
            return ""
        return f"run.metrics has {len(self):,} of the {sum(self.counts):,} rows that were logged: one in {self._every}"

    @property
    def doubts(self) -> list[str]:
        """Sentences that say which logged numbers were nan or infinite, and where first."""
        return [self._doubt(name, firsts) for name, firsts in list(self._not_finite.items())[:_MOST_DOUBTS]]

    def _doubt(self, name, firsts):
        step, value = next(iter(firsts.values()))
        with contextlib.suppress(TypeError):  # steps may be texts
            step, value = min(firsts.values(), key=lambda first: first[0])
        ranks = sorted(rank for rank, first in firsts.items() if first[0] == step)
        whose = "" if len(ranks) == len(self.counts) else f", on {names_of(ranks)}"
        return f"{name} was {value} for the first time at step {step}{whose}."
