"""Schedules in words, and 1F1B's three phases: warm-up, steady state, cool-down."""

from .measured import length
from .schedules import by_stage, peak_activations
from .spans import bubble_fraction, place


def phases_1f1b(schedule):
    """Return for each stage of a 1F1B schedule three lists of its tasks: (warm-up, steady state, cool-down).

    The warm-up has a forward for each stage that comes after, the cool-down as many backwards, and between them
    forwards and backwards alternate. With too few micro-batches there is no steady state.
    """
    stages = by_stage(schedule)
    phases = []
    for stage, tasks in enumerate(stages):
        ahead = min(len(stages) - 1 - stage, len(tasks) // 2)
        phases.append((tasks[:ahead], tasks[ahead : len(tasks) - ahead], tasks[len(tasks) - ahead :]))
    return phases


def summary(schedule):
    """Return "33 units, 27% idle, held [4, 3, 2, 1]": its length with `place`'s costs, its bubble,
    and what stages hold.
    """
    spans = place(schedule)
    return f"{length(spans):g} units, {bubble_fraction(spans):.0%} idle, held {peak_activations(schedule)}"


def words(tasks):
    """Return "F0 F1 B0 …", a letter and a micro-batch for each task; "–" for none."""
    return " ".join(f"{task.phase[0].upper()}{task.micro_batch}" for task in tasks) or "–"
