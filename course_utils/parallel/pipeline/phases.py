"""Schedules as text, and the three phases of 1F1B: warm-up, steady state, cool-down."""

from .measured import length
from .schedules import by_device, peak_activations
from .spans import bubble_fraction, place


def phases_1f1b(schedule):
    """Return for each stage of a 1F1B schedule its tasks as three lists: (warm-up, steady state, cool-down).

    The warm-up has one forward per later stage, the cool-down as many backwards; in between, forwards and backwards
    alternate. With too few micro-batches there is no steady state.
    """
    stages = by_device(schedule)
    phases = []
    for stage, tasks in enumerate(stages):
        ahead = min(len(stages) - 1 - stage, len(tasks) // 2)
        phases.append((tasks[:ahead], tasks[ahead : len(tasks) - ahead], tasks[len(tasks) - ahead :]))
    return phases


def summary(schedule):
    """Return length with `place`'s costs, bubble and activations: "33 units, 27% idle, held [4, 3, 2, 1]"."""
    spans = place(schedule)
    return f"{length(spans):g} units, {bubble_fraction(spans):.0%} idle, held {peak_activations(schedule)}"


def words(tasks):
    """Return "F0 F1 B0 …", a letter and a micro-batch for each task; "–" for no tasks.

    I and W are the two parts of a split backward, "input" and "weight".
    """
    return " ".join(f"{task.phase[0].upper()}{task.micro_batch}" for task in tasks) or "–"
