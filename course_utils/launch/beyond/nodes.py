"""Two or more "nodes" on this machine: a torchrun agent each, `on=Nodes(2)`."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from selectors import SelectorKey
from typing import TYPE_CHECKING

from ... import hardware
from ..call import Call
from ..forkserver import handle
from ..here import require_room
from ..place import Place, inherited, require_whole
from ..watch.explain import how_it_failed
from ..watch.supervisor import Supervisor
from ..worker import surroundings
from . import remote
from .folder import Job, made
from .follower import Follower

if TYPE_CHECKING:
    from ..place import Start

_PAUSE_S = 0.02


@dataclass(frozen=True)
class Nodes(Place):
    """Two or more "nodes" on this machine: a torchrun agent each, which starts its share of the workers.

    Every rank has LOCAL_RANK and LOCAL_WORLD_SIZE of its node. If there is a GPU for each rank, a node sees only its
    own GPUs.
    """

    count: int = 2

    def __post_init__(self):
        require_whole("the number of nodes", self.count)

    def world_size(self, asked: int | None) -> int:
        """Return `asked`, or the default rounded to equal shares. Raises ValueError if `count` does not divide it."""
        if asked is None:
            return self.count * max(1, hardware.default_world_size() // self.count)
        if asked % self.count:
            raise ValueError(
                f"world_size is {asked}, which {self.count} nodes cannot share equally: take a multiple of {self.count}"
            )
        return asked

    def shape(self, world_size: int, placement: hardware.Placement) -> tuple[int, int, int]:
        share = world_size // self.count
        return self.count, share, share if placement.device_type == "cuda" else 0

    def place(self, world_size: int, backend: str | None) -> hardware.Placement:
        placement = hardware.choose_backend(world_size, backend)
        require_room(world_size)
        note = f"{self.count} nodes on this machine, a torchrun agent each; {placement.note}"
        return dataclasses.replace(placement, note=note)

    @contextlib.contextmanager
    def ranks(self, start: Start) -> Iterator[Follower]:
        with (
            inherited(start, backend=None) as (port, captured, surroundings_fd),  # of the agents, which join no group
            surroundings.folder() as temporary,
            contextlib.ExitStack() as stack,
        ):
            # GPUs that are reserved on a shared node, or that the user selected.
            visible = (captured.environment or {}).get("CUDA_VISIBLE_DEVICES")
            shares = self._gpus(start.world_size, start.placement, visible)
            job = Job(self.count, start.world_size // self.count, ("127.0.0.1", port), shares)
            folder = stack.enter_context(made(temporary, start.call_fd, captured, start.placement.backend, job))
            call_fd = Call(remote.run_agent_of_rank, (str(folder.path),)).dump()
            stack.callback(os.close, call_fd)
            agents = Agents(handle.current(), self.count, temporary, surroundings_fd, call_fd)
            yield Follower(folder, agents, start.world_size)

    def _gpus(self, world_size, placement, chosen):
        """Return for each node the variable that shows it its share of the `chosen` GPUs.

        Returns [] if ranks share GPUs or use none.
        """
        if placement.device_type != "cuda" or hardware.num_devices() < world_size:
            return []
        names = chosen.split(",") if chosen else [str(i) for i in range(hardware.num_devices())]
        share = world_size // self.count
        return [{"CUDA_VISIBLE_DEVICES": ",".join(names[i * share : (i + 1) * share])} for i in range(self.count)]


class Agents:
    """The engine of a Follower that runs agents as workers of the forkserver, with torch already imported."""

    start_s = 120.0

    def __init__(self, handle, num_nodes, folder, surroundings_fd, call_fd):
        """Prepare agents with a `folder` for multiprocessing's temporary files and two payloads, as for any worker."""
        log = io.StringIO()  # the output of torchrun's agents is not shown
        self._agents = Supervisor(handle, num_nodes, folder, surroundings_fd, call_fd, stream=log)

    def start(self) -> None:
        self._agents.start()

    def pause(self) -> list[SelectorKey]:
        return self._agents.select(time.monotonic() + _PAUSE_S)

    def take(self, news: list[SelectorKey]) -> None:
        self._agents.take(news)

    def problem(self) -> str | None:
        failed = sorted(
            (outcome for outcome in self._agents.outcomes if outcome.has_failed), key=lambda outcome: outcome.time
        )
        if failed:
            return f"the agent of node {failed[0].rank} of {self._agents.world_size}: {how_it_failed(failed[0])}"
        return "torchrun's agents ended before their ranks" if self._agents.is_over else None

    @property
    def answers(self) -> bool:
        return not self._agents.is_over

    @property
    def killed_for_memory(self) -> bool:
        return self._agents.killed_for_memory

    def stop(self, is_well: bool) -> bool:
        return self._agents.stop()
