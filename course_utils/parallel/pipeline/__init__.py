"""Pipelines: a network cut into stages, a batch into micro-batches, and the order in which the stages work on them."""

from .parts import split_batch, split_layers
from .schedules import Task, gpipe, naive, one_forward_one_backward, peak_activations, validate
from .spans import Span, bubble_fraction, place

__all__ = [
    "Span", "Task", "bubble_fraction", "gpipe", "naive", "one_forward_one_backward", "peak_activations", "place",
    "split_batch", "split_layers", "validate",
]  # fmt: skip
