"""What a GPU did, out of the events of torch's profiler."""

from collections.abc import Iterable
from typing import Any


def on_gpu(events: Iterable[Any]) -> list[Any]:
    """Return those of `events` that a GPU carried out: kernels, copies and fills; marks on its timeline are none."""
    return [event for event in events if event.device_type.name == "CUDA" and not event.is_user_annotation]


def kernels(events: Iterable[Any]) -> list[Any]:
    """Return those of `events` that are kernels: copies and fills of memory are none."""
    return [event for event in on_gpu(events) if not event.name.startswith(("Memcpy", "Memset"))]
