"""How far a plan can be trusted: the errors on published jobs that are like it."""

from dataclasses import dataclass
from functools import cache

from .. import Method, Plan
from . import language_models
from .comparison import BOUND, Row, Summary, summary

FEWEST = 4  # rows; fewer say nothing about others
LARGER = 3.0  # times as many parameters, or as few, are alike


@dataclass(frozen=True)
class Seen:
    """The published rows that are like a plan, and what the planner was off by there; `unlike` says what none has."""

    rows: tuple[Row, ...]
    unlike: tuple[str, ...]

    @property
    def summary(self) -> Summary | None:
        return summary(self.rows) if self.rows else None

    def __str__(self):
        if self.summary is None:
            return f"No published row is like this plan: none has {', or '.join(self.unlike)}. Its error is not known."
        sources = ", ".join(dict.fromkeys(row.source for row in self.rows))
        found = self.summary
        text = (
            f"On {found.number} published rows like this plan ({sources}) the planner's speed was off by "
            f"{found.median:.0%} in the median, and by at most {found.nine_tenths:.0%} in nine tenths of them."
        )
        return text + (f" None of them has {', or '.join(self.unlike)}." if self.unlike else "")


def seen(plan: Plan) -> Seen:
    """The Seen of `plan`: rows for the same GPU, a network of similar size, and the same ways to split it.

    Conditions that leave fewer than four rows are dropped, the least important first, and named in `unlike`.
    """
    alike, unlike = list(_rows()), []
    for what, holds in _conditions(plan):
        found = [row for row in alike if holds(row.plan)]
        if len(found) >= FEWEST:
            alike = found
        else:
            unlike.append(what)
    if plan.network.heads is None:
        return Seen((), ("a network that was counted from its module",))
    gpu = plan.cluster.gpu.name
    return Seen((), (gpu,)) if gpu in unlike else Seen(tuple(alike), tuple(unlike))


@cache
def _rows():
    return tuple(row for row in language_models.rows() if row.kind != BOUND)


def _conditions(plan):
    """(what it is called, a function that says whether a published plan has it), the most important first."""
    parameters, method = plan.network.parameters, plan.method
    yield plan.cluster.gpu.name, lambda other: other.cluster.gpu.name == plan.cluster.gpu.name
    yield (
        f"{_in_billions(parameters)} parameters",
        lambda other: 1 / LARGER <= other.network.parameters / parameters <= LARGER,
    )
    has_experts = plan.network.experts > 0
    yield "experts" if has_experts else "no experts", lambda other: (other.network.experts > 0) == has_experts
    is_fp8 = method.precision == "fp8"
    yield "products in fp8" if is_fp8 else "no fp8", lambda other: (other.method.precision == "fp8") == is_fp8
    for name in ("tensor", "pipeline"):
        is_split = getattr(method, name) > 1
        yield (
            f"{'' if is_split else 'no '}{name} parallelism",
            lambda other, name=name, is_split=is_split: (getattr(other.method, name) > 1) == is_split,
        )
    yield _sharding(method), lambda other: _sharding(other.method) == _sharding(method)
    yield (
        f"{_RECOMPUTED[method.checkpointing]} recomputation",
        lambda other: other.method.checkpointing == method.checkpointing,
    )


_RECOMPUTED = {"none": "no", "selective": "selective", "operations": "operation-by-operation", "full": "full"}


def _sharding(method: Method):
    return "sharded parameters" if method.divides("full") else "whole parameters on each rank"


def _in_billions(parameters):
    return f"{parameters / 1e9:.3g} billion"
