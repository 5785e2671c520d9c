"""Evaluating a measured pipeline: the cost of its tasks, and why the step took longer than the formula says."""

import itertools
import statistics

from .schedules import Task, needs
from .spans import Span, bubble_fraction


def length(spans):
    """Return the time from the first begin to the last end."""
    return max(span.end for span in spans) - min(span.begin for span in spans)


def title(name, spans):
    """Return a chart title for spans in seconds: the name, the length of the step and the idle share."""
    return f"{name}: {1e3 * length(spans):.0f} ms, {bubble_fraction(spans):.0%} idle"


def median_costs(spans):
    """Return (forward, backward), two lists of each stage's median task length, as `place` takes them."""
    num_stages = 1 + max(span.stage for span in spans)
    return tuple(
        [
            statistics.median(span.end - span.begin for span in spans if span[:3:2] == (stage, phase))
            for stage in range(num_stages)
        ]
        for phase in ("forward", "backward")
    )


def replay(spans):
    """Return the spans with measured lengths and order, but with messages that take no time.

    The measured step exceeds its replay by the time that tasks waited for messages, and that processes spent between
    two tasks.
    """
    num_stages = 1 + max(span.stage for span in spans)
    end_of, free_at, replayed = {None: 0.0}, [0.0] * num_stages, []
    for span in sorted(spans, key=lambda span: span.begin):
        task = Task(*span[:3])
        begin = max(free_at[task.stage], end_of[needs(task, num_stages)])
        end_of[task] = free_at[task.stage] = begin + span.end - span.begin
        replayed.append(Span(*task, begin, end_of[task]))
    return replayed


def gap(formula_s, planned, measured):
    """Return {cause: seconds}, which add up to the length of the measured step.

    "formula" is `formula_s`; "imbalance" is how much longer `planned` is, placed with each stage's own costs;
    "variation" is how much longer the replay of the measured tasks is than the plan; "rest" is what is left: waiting
    for messages, and whatever else a process does between two tasks.
    """
    lengths = [formula_s, length(planned), length(replay(measured)), length(measured)]
    differences = [after - before for before, after in itertools.pairwise(lengths)]
    return dict(zip(("formula", "imbalance", "variation", "rest"), [formula_s, *differences]))
