"""Schedules in time: when each task begins and ends, and how long the stages are idle."""

from typing import NamedTuple

from .schedules import by_device, needs, validate


class Span(NamedTuple):
    """A measured or planned task from `begin` to `end`, in the unit of the costs."""

    stage: int
    micro_batch: int
    phase: str
    begin: float
    end: float


def place(schedule, forward_s=1.0, backward_s=2.0, *, input_s=1.0, weight_s=1.0, num_devices=None, message_s=0.0):
    """Return a `Span` for each task, as early as its device and its input allow.

    A result reaches another device `message_s` after the end of its task; the devices go on working meanwhile.

    The costs are those of one micro-batch: one number for all stages, or one per stage in a list. The default has the
    usual ratio, since the backward pass computes two gradients. `input_s` and `weight_s` are the costs of the two if a
    schedule computes them apart. With `num_devices`, stage s is on device s % num_devices. Raises ValueError as
    `pipeline.validate` does.
    """
    stages = by_device(schedule)
    num_stages = len(stages)
    num_micro_batches = 1 + max(task.micro_batch for tasks in stages for task in tasks)
    tasks = validate(schedule, num_stages, num_micro_batches, num_devices)
    given = {"forward": forward_s, "backward": backward_s, "input": input_s, "weight": weight_s}
    costs = {phase: list(cost) if hasattr(cost, "__len__") else [cost] * num_stages for phase, cost in given.items()}
    for phase, cost in costs.items():
        if len(cost) != num_stages:
            raise ValueError(
                f"{phase}_s has {len(cost)} values for {num_stages} stages: give one a stage, or one number for all"
            )
    end_of, free_at, spans = {None: 0.0}, [0.0] * num_stages, []
    for task in tasks:
        device = task.stage % (num_devices or num_stages)
        before = needs(task, num_stages)
        is_sent = before is not None and before.stage % (num_devices or num_stages) != device
        begin = max(free_at[device], end_of[before] + is_sent * message_s)
        end_of[task] = free_at[device] = begin + costs[task.phase][task.stage]
        spans.append(Span(*task, begin, end_of[task]))
    return sorted(spans, key=lambda span: (span.begin, span.stage))


def bubble_fraction(spans, num_devices=None):
    """Return the idle share of the devices' time, from the first begin to the last end: 0 to 1.

    Without `num_devices` each stage has its own. With K equal stages and M micro-batches it is (K − 1)/(M + K − 1) for
    GPipe and 1F1B. Narayanan et al. 2021 divide the idle time by the busy time instead: (K − 1)/M.
    """
    if not spans:
        raise ValueError("there are no spans: place a schedule first, or measure one")
    num_devices = num_devices or len({span.stage for span in spans})
    whole = max(span.end for span in spans) - min(span.begin for span in spans)
    busy = sum(span.end - span.begin for span in spans)
    return 1 - busy / (whole * num_devices)
