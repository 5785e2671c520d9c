"""Workers on this machine, forked from the notebook's forkserver, and how many of them it can run."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import hardware
from .forkserver import handle
from .place import Place, Start, inherited
from .watch.supervisor import Supervisor
from .worker import surroundings

_PER_CORE = 64
_ALLOWS_MORE = "COURSE_WORKERS_PER_CORE"
# Per worker: memory of its own, threads, and file descriptors open in the notebook.
_MIB, _TASKS, _DESCRIPTORS = 30, 6, 4
_SPARE_DESCRIPTORS = 16
_PIDS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Here(Place):
    """This machine: where `launch` runs ranks without `on=`."""

    shares_memory = can_keep_going = True

    def world_size(self, asked: int | None) -> int:
        return hardware.default_world_size() if asked is None else asked

    def place(self, world_size: int, backend: str | None) -> hardware.Placement:
        placement = hardware.choose_backend(world_size, backend)
        require_room(world_size)
        return placement

    def shape(self, world_size: int, placement: hardware.Placement) -> tuple[int, int, int]:
        return 1, world_size, world_size if placement.device_type == "cuda" else 0

    @contextlib.contextmanager
    def ranks(self, start: Start) -> Iterator[Supervisor]:
        with inherited(start, start.placement.backend) as (_, _, fd), surroundings.folder() as folder:
            supervisor = Supervisor(
                handle.current(), start.world_size, folder, fd, start.call_fd, keeps_going=start.keep_going
            )
            if start.is_patient:
                supervisor.forgive_waiting()
            yield supervisor


def require_room(world_size: int) -> None:
    """Raise ValueError, with the reason and a remedy, if this machine cannot run `world_size` workers."""
    for most, why in _limits():
        if world_size > most:
            raise ValueError(f"world_size is {world_size}, and this machine can serve {max(0, most)} workers: {why}")


def _limits():
    """Yield (maximal number of workers, reason) for each resource."""
    per_core = _whole_number(os.environ.get(_ALLOWS_MORE)) or _PER_CORE
    cores = f"each of its {hardware.num_cores()} cores" if hardware.num_cores() > 1 else "its one core"
    yield (
        per_core * hardware.num_cores(),
        f"more than {per_core} on {cores} would hardly move; {_ALLOWS_MORE}=… in the environment allows it",
    )
    with contextlib.suppress(ImportError, OSError):  # not on this system
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = limit - len(os.listdir("/dev/fd")) - _SPARE_DESCRIPTORS
        if limit != resource.RLIM_INFINITY:
            yield (
                free // _DESCRIPTORS,
                f"this process may have {limit} files open, and each worker takes {_DESCRIPTORS}; `ulimit -n` in the "
                "shell that starts it sets how many",
            )
    with contextlib.suppress(ValueError, OSError):  # no such limit, or "max"
        limit, used = (int((_PIDS / f"pids.{name}").read_text()) for name in ("max", "current"))
        yield (
            (limit - used) // _TASKS,
            f"this container may have {limit} threads and has {used}, and each worker takes {_TASKS}; its pids limit "
            "says how many (docker run --pids-limit)",
        )
    import psutil

    free_mib = psutil.virtual_memory().available >> 20
    yield (
        free_mib // _MIB,
        f"{free_mib:,} MiB of memory are free, and each worker takes {_MIB} and more; close other programs",
    )


def _whole_number(text):
    return int(text) if text and text.strip().isdecimal() else None
