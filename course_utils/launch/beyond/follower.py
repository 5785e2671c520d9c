"""Follows, from the notebook, ranks that agents have started: reads what they write into a folder."""

import contextlib
import os
import time

from ...processes import interrupts
from ..forkserver.protocol import Exited
from ..watch.common import Watch
from ..watch.errors import LauncherError, WorkerError
from ..watch.explain import explain, lines_about
from ..watch.outcome import Outcome
from .folder import Reader

_ALIVE_S = 2.0  # between two signs of life
_STACKS_S = 3.0
_OUTPUT_S = 0.5


class Follower(Watch):
    """Watches ranks whose agents `engine` starts and ends: call `start`, then `wait`, and always `stop`.

    An engine has `start()`; `pause()`, which waits a moment and returns news for `take(news)`; `problem()`, a text that
    says why no more messages can come, or None; `answers`, whether an agent is left to ask; `start_s`, seconds that the
    ranks have to begin; `killed_for_memory`; and `stop(is_well)`, which returns whether all that it started here has
    ended.
    """

    def __init__(self, folder, engine, world_size):
        super().__init__(world_size)
        self._folder, self._engine = folder, engine
        self._readers = [Reader(folder.of_rank(rank, "messages")) for rank in range(world_size)]
        self._outputs = {}
        self._ended, self._problem = set(), None
        self._showed_life, self._unwritten = 0.0, ""

    def start(self) -> None:
        self._show_life()
        self._engine.start()

    def wait(self, timeout: float) -> None:
        """Wait until all ranks have returned and ended.

        `timeout` counts seconds from when all ranks had begun. Raises WorkerError if a rank fails, at the timeout, or
        if the job ends early; and LauncherError.
        """
        seconds = self.watch(timeout, self._engine.start_s)
        failed = [outcome for outcome in self.outcomes if outcome.has_failed]
        if self._problem is not None and not self._all_ended and all(outcome.has_lost_connection for outcome in failed):
            raise self._ended_early()
        if failed:
            raise explain(self.whereabouts(), killed_for_memory=self._engine.killed_for_memory)
        if not self._all_ended:
            raise explain(self.whereabouts(), timeout=seconds)

    @property
    def _all_ended(self):
        return len(self._ended) == self.world_size

    @property
    def is_over(self) -> bool:
        return self._all_ended or self._problem is not None

    def look(self, until: float) -> None:
        self._show_life()
        with contextlib.nullcontext() if self.is_deaf else interrupts.allowed():
            news = self._engine.pause()
        self._engine.take(news)
        self._problem = self._engine.problem()  # before the last read, so that no message is missed
        self._read()

    def _ended_early(self):
        """Return the error for agents that ended before their ranks: a LauncherError if no rank had begun."""
        problem = self._problem + (self._folder.lack() or self._unwritten)
        if not self.begun:
            return LauncherError(problem)
        return WorkerError("\n\n".join([problem, "\n".join(lines_about(self.whereabouts()))]), ranks=self.outcomes)

    def stop(self) -> bool:
        """End what still runs, show the rest of the output and close everything.

        Returns whether all agents on this machine have ended.
        """
        try:
            have_ended = self._engine.stop(is_well=self._all_ended)
            deadline = time.monotonic() + _OUTPUT_S
            while self._read_outputs() and time.monotonic() < deadline:
                pass
        finally:
            for fd in self._outputs.values():
                os.close(fd)
            self._outputs = {}
            self.output.finish()
        return have_ended

    def _show_life(self):
        if time.monotonic() - self._showed_life <= _ALIVE_S:
            return
        try:
            self._folder.dump("alive", time.time())
            self._showed_life, self._unwritten = time.monotonic(), ""
        except OSError as error:  # the disk may be full for a moment; agents wait a minute
            self._unwritten = f"; the notebook cannot write to {self._folder.path} ({error.strerror})"

    def _read(self):
        self._read_outputs()
        for rank, reader in enumerate(self._readers):
            for message, fds in reader.read():
                if isinstance(message, Exited):
                    self._ended.add(rank)
                    self.note_end(rank, message.code, message.time)
                else:
                    self.hear(rank, message, fds)

    def _read_outputs(self):
        """Show what the ranks have printed since the last call; return whether there was anything."""
        has_read = False
        for rank in range(self.world_size):
            if rank not in self._outputs:
                with contextlib.suppress(FileNotFoundError):
                    self._outputs[rank] = self._folder.open(f"rank_{rank}.out")
            has_read |= rank in self._outputs and self.output.read(rank, self._outputs[rank])
        return has_read

    def whereabouts(self) -> list[Outcome]:
        """Have every rank that still runs dump its stack, and return the outcomes."""
        asked = [
            outcome.rank for outcome in self.outcomes if outcome.rank not in self._ended and self.may_say_where(outcome)
        ]
        asked = [rank for rank in asked if rank in self._outputs]  # those that have started
        if asked and self._engine.answers:
            self.ask(asked, self._signal, _STACKS_S)
        return self.outcomes

    def _signal(self, ranks):
        with contextlib.suppress(OSError):  # a full disk: their stacks remain unknown
            self._folder.dump("ask", time.time())

    def stacks(self, rank: int) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self._folder.of_rank(rank, "stacks").read_text(errors="replace")
        return ""
