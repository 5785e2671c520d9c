"""A published measurement beside the planner's prediction."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median, quantiles

from .. import Plan

PREDICTION, INPUT, SIBLING, BOUND = KINDS = "prediction", "input", "sibling", "bound"


@dataclass(frozen=True)
class Row:
    """A published number and the planner's, both in `unit`.

    `kind` is "input" if a constant of the planner was fitted to the row, "sibling" if one was fitted to another row of
    the same network on the same GPUs, "bound" if the source says "more than", else "prediction". `reason` explains a
    large difference. `plan` is the job.
    """

    source: str
    what: str
    unit: str
    published: float
    predicted: float
    kind: str = PREDICTION
    reason: str = ""
    plan: Plan | None = None

    @property
    def error(self) -> float:
        """The relative error of the predicted speed (of the value itself, in bytes): above 0 it promises too much."""
        ratio = self.predicted / self.published
        return (1 / ratio if self.unit in ("s a step", "ms", "µs") else ratio) - 1


@dataclass(frozen=True)
class Summary:
    """How far predictions were off: of `number` rows, the median error, nine tenths', and the worst (signed)."""

    number: int
    median: float
    nine_tenths: float
    within_25: float
    worst: float

    def __str__(self):
        return (
            f"{self.number} rows: median error {self.median:.1%}, nine tenths within {self.nine_tenths:.0%}, "
            f"{self.within_25:.0%} within 25 %, worst {self.worst:+.0%}"
        )


def summary(rows: Iterable[Row]) -> Summary:
    """The Summary of the rows' errors. Raises ValueError if there are none."""
    errors = [row.error for row in rows]
    if not errors:
        raise ValueError("there are no rows to summarise")
    sizes = sorted(map(abs, errors))
    nine_tenths = quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[0]
    within = sum(size <= 0.25 for size in sizes) / len(sizes)
    return Summary(len(sizes), median(sizes), nine_tenths, within, max(errors, key=abs))
