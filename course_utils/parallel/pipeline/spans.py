"""Schedules in time: when each task begins and ends, and how long the stages are idle."""

from typing import NamedTuple

from .schedules import by_stage, needs, validate


class Span(NamedTuple):
    """A measured or planned task from `begin` to `end`, in the unit of the costs."""

    stage: int
    micro_batch: int
    phase: str
    begin: float
    end: float


def place(schedule, forward_s=1.0, backward_s=2.0):
    """Return a `Span` for each task, as early as its stage and its input allow; messages take no time.

    `forward_s` and `backward_s` are the costs of one micro-batch: one number for all stages, or one per stage in a
    list. The default has the usual ratio, since the backward pass computes two gradients. Raises ValueError as
    `pipeline.validate` does.
    """
    stages = by_stage(schedule)
    num_stages = len(stages)
    tasks = validate(schedule, num_stages, 1 + max(task.micro_batch for tasks in stages for task in tasks))
    costs = {
        phase: list(cost) if hasattr(cost, "__len__") else [cost] * num_stages
        for phase, cost in (("forward", forward_s), ("backward", backward_s))
    }
    for phase, cost in costs.items():
        if len(cost) != num_stages:
            raise ValueError(
                f"{phase}_s has {len(cost)} values for {num_stages} stages: give one a stage, or one number for all"
            )
    end_of, free_at, spans = {None: 0.0}, [0.0] * num_stages, []
    for task in tasks:
        begin = max(free_at[task.stage], end_of[needs(task, num_stages)])
        end_of[task] = free_at[task.stage] = begin + costs[task.phase][task.stage]
        spans.append(Span(*task, begin, end_of[task]))
    return sorted(spans, key=lambda span: (span.begin, span.stage))


def bubble_fraction(spans):
    """Return the idle share of the stages' time, from the first begin to the last end: 0 to 1.

    With K equal stages and M micro-batches it is (K − 1)/(M + K − 1) for GPipe and 1F1B. Narayanan et al. 2021 divide
    the idle time by the busy time instead: (K − 1)/M.
    """
    if not spans:
        raise ValueError("there are no spans: place a schedule first, or measure one")
    stages = {span.stage for span in spans}
    whole = max(span.end for span in spans) - min(span.begin for span in spans)
    busy = sum(span.end - span.begin for span in spans)
    return 1 - busy / (whole * len(stages))
