"""Where the ranks of a launch run: what `launch` asks of `Here`, `Nodes`, `Slurm` and chapter 15's `Environment`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .. import hardware
from ..processes import payload
from .forkserver import rendezvous
from .worker import surroundings

if TYPE_CHECKING:
    from .watch.known import Watch


@dataclass(frozen=True)
class Start:
    """What a place is to start: `call_fd` is the payload of the call, `gpus` the environment variables that choose the
    GPUs which a shared node has reserved, if it has.

    With `keep_going` the other ranks go on when one fails. With `is_patient` the timeout leaves out the time in which
    ranks waited for a core that another program had.
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
    """Where ranks run. `is_here` says whether that is this machine, on which then it is their turn when `ranks` is
    called; `shares_memory` whether they share the notebook's; `can_keep_going` whether a rank may outlive a failed one.
    """

    is_here = True
    shares_memory = can_keep_going = False

    def world_size(self, asked: int | None) -> int:
        """The number of workers, where `asked` for a number or None. Raises ValueError for one that cannot be."""
        raise NotImplementedError

    def place(self, world_size: int, backend: str | None) -> hardware.Placement:
        """The hardware.Placement of so many workers with this backend."""
        raise NotImplementedError

    def shape(self, world_size: int, placement: hardware.Placement) -> tuple[int, int, int]:
        """(nodes, workers on each, GPUs on each), for a batch file."""
        raise NotImplementedError

    def ranks(self, start: Start) -> contextlib.AbstractContextManager[Watch]:
        """A context manager that gives the Watch of the ranks of `start`, a Start. It has not started them yet."""
        raise NotImplementedError


@contextlib.contextmanager
def inherited(
    start: Start,
    backend: str | None,
    change: Callable[[surroundings.Surroundings], surroundings.Surroundings] = lambda captured: captured,
) -> Iterator[tuple[int, surroundings.Surroundings, int]]:
    """A store for the ranks to meet at, and what they inherit: (its port, the Surroundings, a payload's descriptor)."""
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
