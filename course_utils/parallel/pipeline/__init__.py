"""Pipelines: a network cut into stages, a batch into micro-batches, and schedules for the stages."""

from .beyond import interleaved_1f1b, zb_h1
from .measured import gap, length, median_costs, replay, title
from .parts import split_batch, split_layers
from .phases import phases_1f1b, summary, words
from .schedules import Task, gpipe, naive, needs, one_forward_one_backward, peak_activations, validate
from .spans import Span, bubble_fraction, place

__all__ = [
    "Span", "Task", "bubble_fraction", "gap", "gpipe", "interleaved_1f1b", "length", "median_costs", "naive",
    "needs", "one_forward_one_backward", "peak_activations", "phases_1f1b", "place", "replay", "split_batch",
    "split_layers", "summary", "title", "validate", "words", "zb_h1",
]  # fmt: skip
