"""Follows persistent workers of a Slurm job: sends them requests through the folder that both sides see."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..beyond.folder import Writer
from ..beyond.follower import Follower
from ..forkserver.protocol import Describe, Interrupt
from ..watch.errors import LauncherError
from ..watch.outcome import Outcome
from ..watch.supervisor import START_S
from .requests import Requests

_ALIVE_S = 2.0  # between two signs of life
_HEED_S = 1.0  # for an interrupted rank to stop
_DESCRIBE_S = 1.0


class RequestFollower(Requests, Follower):
    """Follows ranks that serve requests, started by agents that last as long as their folder."""

    def __init__(self, folder, engine, world_size, is_first):
        """Prepare to follow the ranks; `is_first`: their job may still have to wait in the queue."""
        super().__init__(folder, engine, world_size)
        self.start_s = engine.start_s if is_first else START_S
        self.deaf_until = 0.0  # interrupts are delayed until then, during a recovery
        self._writers = [Writer(folder.of_rank(rank, "requests")) for rank in range(world_size)]
        self._stacks_begin = [0] * world_size
        self._has_stopped = threading.Event()

    def start(self) -> None:
        for rank in range(self.world_size):
            self._folder.of_rank(rank, "requests").touch()
        threading.Thread(target=self._live, name="course sign of life", daemon=True).start()
        self._engine.start()

    def _live(self):
        """Show the agents that the notebook lives, also between two cells."""
        while True:
            with contextlib.suppress(OSError):  # the disk may be full for a moment; agents wait a minute
                self._folder.dump("alive", time.time())
            if self._has_stopped.wait(_ALIVE_S):
                return

    def _show_life(self):
        """Leave it to the thread."""

    def stop(self) -> bool:
        self._has_stopped.set()
        return super().stop()

    @property
    def is_over(self) -> bool:
        return not self.busy or self._problem is not None

    @property
    def is_deaf(self) -> bool:
        return super().is_deaf or time.monotonic() < self.deaf_until

    def request(self, *args: Any, **kwargs: Any) -> float:
        """As `Requests.request`. Raises LauncherError if the job has ended."""
        seconds = super().request(*args, **kwargs)
        if self._problem is not None and self.busy and not self.have_failed:
            raise LauncherError(f"{self._problem}\nThese ranks have ended with it: make new ones with Ranks(…).")
        return seconds

    def tell(self, rank: int, message: object, fds: Sequence[int] = ()) -> None:
        if rank in self.gone:
            return
        try:
            self._writers[rank].send(message, fds)
        except OSError as error:
            raise LauncherError(f"the request cannot be written ({error.strerror}){self._folder.lack()}") from None

    def take_until(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline, deaf_until = time.monotonic() + seconds, self.deaf_until
        self.deaf_until = max(deaf_until, deadline)
        while not condition() and self._problem is None and time.monotonic() < deadline:
            self.look(deadline)
        self.deaf_until = deaf_until

    def drain(self) -> None:
        self._read()

    def interrupt(self) -> None:
        if self.busy:
            for rank in self.busy:
                self.tell(rank, Interrupt())
            self.take_until(lambda: not self.busy, _HEED_S)

    @property
    def killed_for_memory(self) -> bool:
        return self._engine.killed_for_memory

    def whereabouts(self) -> list[Outcome]:
        living = [rank for rank in range(self.world_size) if rank in self.begun and rank not in self.gone]
        for rank in living:
            self.outcomes[rank].described = ()
            if rank in self.busy:
                self.tell(rank, Describe())
            self.recall(rank)
        self.take_until(lambda: all(self.outcomes[rank].told is not None for rank in living), _DESCRIBE_S)
        if all(self.outcomes[rank].described for rank in self.busy):
            return self.outcomes
        return super().whereabouts()

    def begin_anew(self) -> None:
        super().begin_anew()
        self._stacks_begin = [len(super(RequestFollower, self).stacks(rank)) for rank in range(self.world_size)]

    def stacks(self, rank: int) -> str:
        return super().stacks(rank)[self._stacks_begin[rank] :]


class StartInJob:
    """The engine of one start of the ranks in a job that goes on after it: has each node's agent started and ended."""

    def __init__(self, job, holder, folder):
        self._job, self._holder, self._folder = job, holder, folder

    def start(self) -> None:
        self._holder.dump("latest", os.path.basename(self._folder.path))

    def __getattr__(self, name):
        return getattr(self._job, name)

    def stop(self, is_well: bool) -> bool:
        return True  # its agents end when its folder is removed
