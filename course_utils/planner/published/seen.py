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
            return f"No published row is like this plan: none {', or '.join(self.unlike)}. Its error is not known."
        sources = ", ".join(dict.fromkeys(row.source for row in self.rows))
        found = self.summary
        text = (
            f"On {found.number} published rows like this plan ({sources}) the planner's speed was off by "
            f"{found.median:.0%} in the median, and by at most {found.nine_tenths:.0%} in nine tenths of them."
        )
        return text + (f" Unlike this plan, none of them {', or '.join(self.unlike)}." if self.unlike else "")


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
        return Seen((), ("has a network that was counted from its module",))
    gpu = _ran_on(plan)
    return Seen((), (gpu,)) if gpu in unlike else Seen(tuple(alike), tuple(unlike))


@cache
def _rows():
    return tuple(row for row in language_models.rows() if row.kind != BOUND)


def _ran_on(plan):
    return f"ran on the {plan.cluster.gpu.name}"


def _conditions(plan):
    """(what a row does, a function that says whether a published plan does it), the most important first."""
    parameters, method = plan.network.parameters, plan.method
    yield _ran_on(plan), lambda other: other.cluster.gpu.name == plan.cluster.gpu.name
    yield (
        f"has {_in_billions(parameters)} parameters",
        lambda other: 1 / LARGER <= other.network.parameters / parameters <= LARGER,
    )
    for what, has in (
        ("experts", lambda each: each.network.experts > 0),
        ("fp8", lambda each: each.method.precision == "fp8"),
        ("tensor parallelism", lambda each: each.method.tensor > 1),
        ("pipeline parallelism", lambda each: each.method.pipeline > 1),
    ):
        yield (
            f"{'has' if has(plan) else 'ran without'} {what}",
            lambda other, has=has, does=has(plan): has(other) == does,
        )
    yield f"has {_sharding(method)}", lambda other: _sharding(other.method) == _sharding(method)
    yield _RECOMPUTED[method.checkpointing], lambda other: other.method.checkpointing == method.checkpointing


_RECOMPUTED = {
    "none": "ran without recomputation",
    "selective": "has selective recomputation",
    "operations": "recomputes every second product",
    "full": "has full recomputation",
}


def _sharding(method: Method):
    return "sharded parameters" if method.divides("full") else "whole parameters on each rank"


def _in_billions(parameters):
    return f"{parameters / 1e9:.3g} billion"
