"""Where the ranks of a launch run: the interface of `Here`, `Nodes`, `Slurm` and chapter 15's `Environment`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .. import hardware
from ..processes import payload
from .forkserver import rendezvous
from .watch.common import Quiet
from .worker import surroundings

if TYPE_CHECKING:
    from .watch.common import Watch


@dataclass(frozen=True)
class Start:
    """What a Place is asked to start.

    `call_fd` is the payload of the call. `gpus` holds the environment variables that select the GPUs reserved on a
    shared node. With `keep_going` the other ranks go on when one fails. With `is_patient` the timeout does not count
    the time in which ranks waited for cores that other programs used.
    """

    name: str
    world_size: int
    placement: hardware.Placement
    call_fd: int
    debug: bool = False
    gpus: dict[str, str] = field(default_factory=dict)
    keep_going: bool = False
    is_patient: bool = False


class Place:
    """Where ranks run: the base class.

    `is_here`: the ranks run on this machine, so `launch` reserves GPUs or cores on a shared node before it calls
    `ranks`. `shares_memory`: they can share the notebook's memory. `can_keep_going`: other ranks can outlive a failed
    one. `limit_s`: the timeout of a launch that names none.
    """

    is_here = True
    shares_memory = can_keep_going = False
    limit_s: float = Quiet(120)

    def world_size(self, asked: int | None) -> int:
        """Return the number of workers; `asked` is the student's number or None. Raises ValueError if it cannot be."""
        raise NotImplementedError

    def place(self, world_size: int, backend: str | None) -> hardware.Placement:
        """Return the Placement of `world_size` workers with this backend."""
        raise NotImplementedError

    def shape(self, world_size: int, placement: hardware.Placement) -> tuple[int, int, int]:
        """Return (nodes, workers per node, GPUs per node), for a batch file."""
        raise NotImplementedError

    def ranks(self, start: Start) -> contextlib.AbstractContextManager[Watch]:
        """Return a context manager that gives the Watch of the ranks, which are not started yet."""
        raise NotImplementedError


@contextlib.contextmanager
def inherited(
    start: Start,
    backend: str | None,
    change: Callable[[surroundings.Surroundings], surroundings.Surroundings] = lambda captured: captured,
) -> Iterator[tuple[int, surroundings.Surroundings, int]]:
    """Serve a store for the rendezvous, and yield (its port, the Surroundings, the descriptor of their payload)."""
    with rendezvous.store() as store:
        captured = change(surroundings.capture(start.world_size, start.placement, store.port, start.debug, start.gpus))
        fd = payload.dump((captured, backend))
        try:
            yield store.port, captured, fd
        finally:
            os.close(fd)


def require_whole(what: str, value: object, least: int = 1) -> None:
    """Raise ValueError unless `value` is a whole number, `least` or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{what} is a whole number, {least} or more, not {value!r}")
