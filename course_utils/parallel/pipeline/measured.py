"""What a measured pipeline says: the cost of its tasks, and why the step took longer than the formula has it."""

import itertools
import statistics

from .schedules import Task, needs
from .spans import Span, bubble_fraction


def length(spans):
    """Return the time from the first begin to the last end."""
    return max(span.end for span in spans) - min(span.begin for span in spans)


def title(name, spans):
    """Return the name of a chart of spans in seconds, with the length of the step and the share of idle time."""
    return f"{name}: {1e3 * length(spans):.0f} ms, {bubble_fraction(spans):.0%} idle"


def median_costs(spans):
    """Return (forward, backward), two lists with the median length of a task on each stage, as `place` takes them."""
    num_stages = 1 + max(span.stage for span in spans)
    return tuple(
        [
            statistics.median(span.end - span.begin for span in spans if span[:3:2] == (stage, phase))
            for stage in range(num_stages)
        ]
        for phase in ("forward", "backward")
    )


def replay(spans):
    """Return the spans again, every task as long and every stage's order as measured, but with messages that take no
    time.

    What the measured step takes longer than its replay was spent between tasks whose input was ready: on messages.
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

    "formula" is `formula_s`. "imbalance" is what `planned`, placed with each stage's own costs, takes longer;
    "variation" is what the replay of the measured tasks takes longer than the plan; "messages" is the rest.
    """
    lengths = [formula_s, length(planned), length(replay(measured)), length(measured)]
    differences = [after - before for before, after in itertools.pairwise(lengths)]
    return dict(zip(("formula", "imbalance", "variation", "messages"), [formula_s, *differences]))
