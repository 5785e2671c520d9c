"""A pool of persistent workers in a Slurm job, which is kept from cell to cell.

    notebook                           every node of the job
    ─────────────────────────────────────────────────────────────────────────────────────────────
    JobPool       ── Slurm job ──────▶ remote.hold_node_in_slurm
                  ── "latest" ───────▶   fork: torchrun's agent ── fork: request_loop.serve, a rank each
    RequestFollower ── requests ─────▶                                    function(*args, **kwargs)

After a failure from which ranks cannot go on, all of them are started anew in the same job.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator

from ..beyond import remote
from ..beyond.folder import Folder, remove
from ..beyond.slurm_job import SlurmJob
from ..call import Call
from ..place import Start
from ..worker import surroundings
from . import request_loop
from .job_requests import RequestFollower, StartInJob
from .pool import DEAF_S, Pool

_PAUSE_S = 0.005


class JobPool(Pool):
    """A pool of ranks in a job of Slurm: call `start`, send requests through `supervisor`, and always `close`."""

    shares_memory = False

    def __init__(self, slurm, world_size, placement, debug):
        super().__init__(world_size, placement, debug)
        self._slurm, self._ranks = slurm, contextlib.ExitStack()

    def start(self) -> None:
        surroundings.current_folder()  # raises if it has been deleted
        stack, parent = self._stack, self._slurm.parent()
        with self.turn:
            self._holder = Folder(tempfile.mkdtemp(prefix="course-ranks-", dir=parent))
            stack.callback(remove, self._holder.path)
            self._call_fd = Call(request_loop.serve).dump()
            stack.callback(os.close, self._call_fd)
            self._job = self._handle = SlurmJob(self._slurm, self._holder, "Ranks", remote.hold_node_in_slurm)
            self._job.pause_s = _PAUSE_S
            stack.callback(self._job.stop, is_well=False)
            stack.push(self._ranks)
            self._job.start()
            self._begin(is_first=True)

    @contextlib.contextmanager
    def at_work(self, pause: Callable[[float], object]) -> Iterator[None]:
        yield  # nothing of this machine is used

    def _begin(self, is_first):
        """Start all ranks in the job, and wait until they answer."""
        start = Start("Ranks", self.world_size, self._placement, self._call_fd, self._debug)
        folder = self._ranks.enter_context(self._slurm.made(self._holder.path, start, serves_requests=True))
        engine = StartInJob(self._job, self._holder, folder)
        supervisor = self.supervisor = RequestFollower(folder, engine, self.world_size, is_first)
        self._ranks.callback(supervisor.stop)
        supervisor.start()
        if not is_first:
            supervisor.deaf_until = time.monotonic() + DEAF_S
        try:
            self._wait_until_ready(supervisor)
        finally:
            supervisor.deaf_until = 0.0

    def _renew(self, supervisor, lost):
        self._ranks.close()
        self.restarted.update(range(self.world_size))
        self._begin(is_first=False)
        return "All ranks have been started anew in the same job, and their variables are gone."
