"""Ranks that persist between cells: workers with a process group that serve one request after another.

    notebook                                    forkserver of its own          worker, one per rank
    ───────────────────────────────────────────────────────────────────────────────────────────────────────
    Ranks, pool         ── Fork ───────────────▶ forkserver ── fork ─────────▶ request_loop.serve
    request_supervisor  ── Ask, with (function, args, kwargs) ───────────────▶   function(*args, **kwargs)
                        ◀─ Answered, with its result ─────────────────────────
    magic: `%%ranks` has them run a cell; columns shows the outcome

A rank that waits in a collective for a failed rank cannot be interrupted. It is killed and restarted, and all ranks
join a new process group.
"""

import atexit
import copy
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from ...processes import interrupts
from ..beyond.slurm_job import Slurm
from ..call import Call, refused_briefly, require_count, require_notebook, require_seconds
from ..display import variables
from ..display.columns import Columns
from ..here import Here
from ..watch.common import Quiet
from ..watch.errors import LauncherError, RanksError, WorkerError, briefly_interrupted
from ..watch.explain import about_debug, explain, interrupted, lines_about
from ..watch.outcome import Outcome
from ..watch.streams import Output
from . import request_loop
from .job_pool import JobPool
from .pool import Pool

_current: "Ranks | None" = None  # this process's Ranks; there is at most one
_ENDED = "these ranks have ended; make new ones with Ranks(…)"


class Ranks:
    """Worker processes that persist, with their process group and variables, until `close()`.

    `run(function, …)` calls a function in all ranks and returns a list of results. A cell that begins with `%%ranks`,
    or `%%ranks 0,2`, runs in them. `ranks["loss"]` is the value of a variable or an expression in each rank, and
    `ranks["lr"] = 0.1` sets a variable in all of them. `logs` is what each rank printed in the latest request. As a
    context manager it ends the ranks with the block. A notebook has one Ranks at a time: a new one ends the one before.

    Args:
        world_size, backend, debug: as for `launch`.
        timeout: seconds that one request may take; ranks still running then are stopped. By default 120 in which no
            rank prints anything.
        on: None for this machine, or `Slurm(…)`: a job that is kept until `close()`, or until its time is over.

    Raises ValueError or TypeError for invalid arguments, and LauncherError if the system does not let the ranks start.
    """

    __iter__ = None  # else iter() would call __getitem__ with 0, 1, …

    def __init__(
        self, world_size: int | None = None, *, timeout: float = Quiet(120), backend: str = "auto",
        debug: bool = False, on: Slurm | None = None,
    ) -> None:  # fmt: skip
        global _current
        with refused_briefly():
            if backend is None:
                raise ValueError('Ranks(backend=None) would have no process group: use "auto", "gloo" or "nccl"')
            require_count(world_size)
            require_seconds(timeout)
            if on is not None and not isinstance(on, Slurm):
                raise TypeError(f"Ranks(on=…) takes Slurm(…), not {on!r}; on this machine, leave it out")
            place = Here() if on is None else on
            self.world_size = place.world_size(world_size)
            self.placement = place.place(self.world_size, backend)
        require_notebook("Ranks")
        self._timeout, self._debug = timeout, debug
        self._output: Output | None = None  # of the latest request
        self._owner = os.getpid()
        where = (self.world_size, self.placement, debug)
        self._pool: Pool = Pool(*where) if on is None else JobPool(on, *where)
        if _current is not None:
            _current.close()
        stopped = "the start of these ranks was interrupted, and none is still running"
        with briefly_interrupted(stopped), interrupts.deferred():
            try:
                _current = self
                self._pool.start()
            except BaseException:
                self.close()
                raise

    @property
    def timeout(self) -> float:
        """Seconds that one request may take."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        with refused_briefly():
            require_seconds(seconds)
        self._timeout = seconds

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call `function(*args, **kwargs)` in every rank and return a list of its results.

        Raises WorkerError if a rank fails or at the timeout; NotSendable, LauncherError and Interrupted, as `launch`
        does; and RanksError if the ranks have ended.
        """
        call = Call(function, args, kwargs)
        with refused_briefly():
            call.require_callable()
            call.require_arguments()
        output = Output(self.world_size, logs="ranks.logs")
        try:
            return self.ask(range(self.world_size), call, call.name, output)
        finally:
            output.finish()

    def ask(
        self, ranks: Iterable[int], call: Call, name: str, output: Output, display: Columns | None = None
    ) -> list[Any]:
        """Like `run`, for some of the ranks; the returned list still has an entry for every rank.

        What they print goes to `output`. `name` is the request's name in messages. `display` is refreshed meanwhile.
        """
        with (
            briefly_interrupted(f"{name} was interrupted"),
            self._pool.turn,
            interrupts.deferred(),
            self._pool.at_work(self._pause),
        ):
            self._output = output
            supervisor = self._require_life(output)
            with refused_briefly():
                fd = call.dump(shares_memory=self._pool.shares_memory)
            try:
                self._watch(supervisor, {rank: fd for rank in ranks}, name, display)
            finally:
                os.close(fd)
            results, supervisor.results = supervisor.results, []  # keep no reference to the results
            return results

    def _pause(self, seconds):
        """Sleep while waiting for the shared node. Raises RanksError if the ranks have ended meanwhile."""
        if self._pool.supervisor is None:
            raise RanksError(_ENDED)
        interrupts.sleep(seconds)

    def _watch(self, supervisor, fds, name, display):
        deadline = time.monotonic() + self.timeout
        error, is_interrupted = None, False
        try:
            try:
                seconds = supervisor.request(fds, self.timeout, self._output, display, can_be_interrupted=True)
                if supervisor.busy and supervisor.have_failed and not supervisor.was_quit:
                    supervisor.wait_for_others(deadline, spins=self.placement.backend == "nccl")
            except KeyboardInterrupt:
                is_interrupted = True
            if supervisor.have_failed:  # a failure is reported first, even after an interrupt
                error = explain(supervisor.account(), None, supervisor.killed_for_memory, "Ranks")
            elif is_interrupted:
                error = interrupted(f"{name} was interrupted", supervisor.account())
            elif supervisor.busy:
                error, is_interrupted = explain(supervisor.account(), seconds, asked_by="Ranks"), True
        except BaseException:
            was_closed = self._pool.supervisor is None
            self.close()
            if was_closed:  # by another thread
                raise RanksError(_ENDED) from None
            raise
        if error is None:
            return
        if display is not None:
            display.begin([copy.copy(outcome) for outcome in supervisor.outcomes], supervisor.rows)
        if isinstance(error, WorkerError) and error.has_quit:
            others = [outcome for outcome in error.ranks if outcome.rank != error.rank]
            error, is_interrupted = interrupted(f"{name} was quit at the prompt of rank {error.rank}", others), True
        if isinstance(error, WorkerError) and error.is_a(NameError) and error.rank in self._pool.restarted:
            error.add(
                f"Rank {error.rank} was started again after an earlier failure, and what it held was lost then: run "
                "the cell that makes this name once more."
            )
        error.add(about_debug(error) if self._debug else "")
        error.add(self._recover(is_interrupted))
        if isinstance(error, WorkerError):
            variables.show_below(error)
        raise error from None

    def _recover(self, is_interrupted):
        try:
            return self._pool.recover(is_interrupted)
        except (Exception, KeyboardInterrupt) as error:
            was_closed = self._pool.supervisor is None  # by another thread
            self.close()
            if was_closed:
                return f"T{_ENDED[1:]}."
            reason = str(error).partition("\n")[0] or "interrupted again"
            return f"The ranks could not be recovered ({reason}) and have ended: make new ones with Ranks(…)."

    def _require_life(self, output):
        """Return the RequestSupervisor; what ranks have printed since the last request goes to `output`.

        Raises RanksError if the ranks have ended, or if a rank has died since the last request and was restarted.
        """
        supervisor = self._pool.supervisor
        if supervisor is None or self._owner != os.getpid():
            raise RanksError(_ENDED)
        supervisor.output = output
        try:
            supervisor.drain()
        except LauncherError:
            self.close()
            raise
        if supervisor.gone:
            ends = "; ".join(lines_about(Outcome(rank, died=code) for rank, code in sorted(supervisor.gone.items())))
            note = self._recover(is_interrupted=False)
            again = " Run the cell again." if self._pool.supervisor is not None else ""
            raise RanksError(f"Since the last cell {ends}. {note}{again}")
        return supervisor

    @property
    def logs(self) -> list[str]:
        """What each rank printed in the latest request, one string per rank (of a very long one beginning and end)."""
        return [self._output.log(rank) if self._output is not None else "" for rank in range(self.world_size)]

    def __getitem__(self, expression):
        """Return the value of a variable or an expression in each rank, as a list."""
        with refused_briefly():
            if not isinstance(expression, str):
                raise TypeError(f'ranks["loss"] takes a variable or an expression as a text, not {expression!r}')
        return self.run(request_loop.evaluate, expression)

    def __setitem__(self, name, value):
        with refused_briefly():
            if not isinstance(name, str) or not name.isidentifier():
                raise ValueError(f"ranks[…] = … sets a variable, and {name!r} is not a variable name")
        self.run(request_loop.assign, name, value)

    def __len__(self):
        return self.world_size

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        state = "ended" if self._pool.supervisor is None else self.placement.note
        return f"<Ranks: {self.world_size}, {state}>"

    def close(self) -> None:
        """End the ranks and all processes that they have started. May be called more than once."""
        global _current
        if self._owner != os.getpid():
            return
        with interrupts.deferred():
            if _current is self:
                _current = None
            self._pool.close()


def current() -> Ranks:
    """Return this process's Ranks. Raises RanksError if there are none."""
    if _current is None or _current._owner != os.getpid():
        raise RanksError("there are no persistent ranks: run `ranks = Ranks(4)` first")
    return _current


@atexit.register
def _close():
    if _current is not None:
        _current.close()
