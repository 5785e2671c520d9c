"""Ranks that persist between cells: workers with a process group, which serve one request after another.

    notebook                                    forkserver of its own          worker, one per rank
    ───────────────────────────────────────────────────────────────────────────────────────────────────────
    Ranks        ── Fork ──────────────────────▶ forkserver ── fork ─────────▶ resident.obey
    residents    ── Ask, with (function, args, kwargs) ──────────────────────▶   function(*args, **kwargs)
                 ◀─ Answered, with its result ────────────────────────────────
    magic: `%%ranks` asks them to run a cell; columns shows the outcome

A rank that waits in a collective for one that has failed cannot be interrupted: it is killed and restarted, and all
join a new process group.
"""

import atexit
import contextlib
import os
import threading
import time

from ..hardware import sharing
from ..processes import interrupts, payload
from . import call, handle, held, rendezvous, resident, surroundings
from .failure import Fate, Interrupted, LauncherError, RanksError, WorkerError, explain, lines_about, names_of
from .residents import Residents
from .streams import Output

_current = None  # this process's Ranks; there is at most one


class Ranks:
    """`world_size` worker processes that persist, with their process group and variables, until `close()`.

    `run(function, …)` calls a function in all of them and returns a list of results; a cell that begins with `%%ranks`,
    or `%%ranks 0,2`, runs in them; `ranks["loss"]` is the value of a variable or an expression in each, and
    `ranks["lr"] = 0.1` sets a variable in all of them. As a context manager it ends them with the block. A notebook has
    one at a time: a new one ends the one before.

    Args:
        world_size, backend, debug: as for `launch`.
        timeout: seconds that one request may take; ranks still running then are stopped.

    Raises ValueError or TypeError for invalid arguments, and LauncherError if the system does not let them start.
    """

    def __init__(self, world_size=None, *, timeout=120, backend="auto", debug=False):
        if backend is None:
            raise ValueError('Ranks(backend=None) would have no process group: use "auto", "gloo" or "nccl"')
        self.world_size, self.placement = call.place(resident.obey, (), {}, world_size, timeout, backend)
        if os.environ.get("COURSE_IN_WORKER"):
            raise RuntimeError(
                "Ranks was called inside a worker, which cannot start workers; call it from the notebook"
            )
        self.timeout, self._debug = timeout, debug
        self.fates = None  # what became of each rank in the latest request
        self._turn = threading.Lock()
        self._closed = threading.Lock()
        self._owner, self._residents, self._stack = os.getpid(), None, contextlib.ExitStack()
        if _current is not None:
            _current.close()
        with interrupts.deferred():
            try:
                self._start()
            except BaseException as error:
                self.close()
                if isinstance(error, KeyboardInterrupt):
                    raise Interrupted("the start of these ranks was interrupted, and none is still running") from None
                raise

    def _start(self):
        global _current
        surroundings.current_folder()  # if it has been deleted, nothing is started
        stack, placement = self._stack, self.placement
        self._gpus = stack.enter_context(sharing.reserve("Ranks", self.world_size, placement.device_type, _pause))
        self._handle = handle.take()
        stack.callback(self._handle.close)
        stack.callback(self._handle.end)
        self._folder = stack.enter_context(surroundings.folder())
        self._stores = stack.enter_context(contextlib.ExitStack())
        self._call_fd = call.dump(resident.obey, (), {})
        stack.callback(os.close, self._call_fd)
        with self._surrounded() as surroundings_fd:
            self._residents = Residents(self._handle, self.world_size, self._folder, surroundings_fd, self._call_fd)
            stack.callback(self._residents.stop)
            _current = self
            self._residents.start()
            self._wait_for_answers({rank: (resident.evaluate, ("None",)) for rank in range(self.world_size)})

    @contextlib.contextmanager
    def _surrounded(self):
        """Yield the surroundings of ranks that start now, with a new store to meet at, as a descriptor."""
        self._stores.close()
        self._store = self._stores.enter_context(rendezvous.store())
        captured = surroundings.capture(self.world_size, self.placement, self._store.port, self._debug, self._gpus)
        fd = payload.dump((captured, self.placement.backend))
        try:
            yield fd
        finally:
            os.close(fd)

    def run(self, function, *args, **kwargs):
        """Call `function(*args, **kwargs)` in every rank and return a list of its results.

        Raises WorkerError if a rank fails or time is up; NotSendable, LauncherError and Interrupted, as `launch` does;
        and RanksError if the ranks have ended.
        """
        call.place(function, args, kwargs, self.world_size, self.timeout, "gloo")
        output = Output(self.world_size)
        try:
            return self.ask(range(self.world_size), function, args, kwargs, call.worker_name(function), output)
        finally:
            output.finish()

    def ask(self, ranks, function, args, kwargs, name, output):
        """Like `run`, for some of the ranks, whose output goes to `output`; the list has an entry for every rank."""
        with self._turn, interrupts.deferred():
            self._require_life()
            fd = call.dump(function, args, kwargs)
            try:
                self._watch({rank: fd for rank in ranks}, name, output)
            finally:
                os.close(fd)
            return self._residents.results

    def _watch(self, fds, name, output):
        residents, deadline = self._residents, time.monotonic() + self.timeout
        error, is_interrupted = None, False
        try:
            seconds = residents.request(fds, self.timeout, output)
            if residents.busy and any(fate.has_failed for fate in residents.asked):
                residents.wait_for_others(deadline)
            if any(fate.has_failed for fate in residents.asked):
                residents.whereabouts()
                error = explain(residents.asked, None, residents.killed_for_memory, "Ranks")
            elif residents.busy:
                residents.whereabouts()
                error, is_interrupted = explain(residents.asked, seconds, asked_by="Ranks"), True
        except KeyboardInterrupt:
            residents.whereabouts()
            error, is_interrupted = Interrupted(f"{name} was interrupted", residents.asked), True
        except BaseException:
            self.close()
            raise
        self.fates = residents.fates
        if error is None:
            return
        if isinstance(error, WorkerError) and error.type_name == "BdbQuit":
            others = [fate for fate in residents.asked if fate.rank != error.rank]
            error, is_interrupted = Interrupted(f"{name} was quit at the prompt of rank {error.rank}", others), True
        error.add(self._recover(is_interrupted))
        if isinstance(error, WorkerError):
            held.show_below(error)
        raise error from None

    def _recover(self, is_interrupted):
        """Make all ranks ready for the next request, and return in words what that took."""
        residents = self._residents
        try:
            if is_interrupted:
                residents.interrupt()
            residents.drain()
            stuck, dead = residents.busy, sorted(residents.gone)
            if not stuck and not dead and len(set(residents.collectives.values())) < 2:
                return ""
            lost = sorted({*stuck, *dead})
            if self.placement.backend == "nccl":  # a missing member leaves the others' GPUs waiting
                lost = list(range(self.world_size))
            self._renew(lost)
        except (LauncherError, WorkerError, KeyboardInterrupt) as error:
            self.close()
            reason = str(error).partition("\n")[0] or "interrupted again"
            return f"The ranks could not be recovered ({reason}) and have ended: make new ones with Ranks(…)."
        if not lost:
            return "The ranks had not run the same collectives, so all have joined a new process group."
        has, its = ("has", "its") if len(lost) == 1 else ("have", "their")
        return (
            f"{names_of(lost).capitalize()} {has} been restarted, and {its} variables are gone. All ranks have joined "
            "a new process group: anything made with the old one, such as a DDP model, must be made again."
        )

    def _renew(self, lost):
        """Restart the ranks `lost`, and have all join a new process group."""
        with self._surrounded() as surroundings_fd:
            rejoin = (resident.rejoin, (self._store.port, self.placement.backend))
            requests = {rank: rejoin for rank in range(self.world_size) if rank not in lost}
            self._residents.collectives.clear()
            self._residents.restart(lost, surroundings_fd, self._call_fd)
            self._wait_for_answers(requests | {rank: (resident.evaluate, ("None",)) for rank in lost})

    def _wait_for_answers(self, requests):
        """Ask each rank in {rank: (function, args)}. Raises WorkerError or LauncherError if one does not answer."""
        fds = {}
        try:
            for rank, (function, args) in requests.items():
                fds[rank] = call.dump(function, args, {})
            output = Output(self.world_size)
            seconds = self._residents.request(fds, self.timeout, output)
            output.finish()
        finally:
            for fd in fds.values():
                os.close(fd)
        fates = self._residents.whereabouts()
        if any(fate.has_failed for fate in fates):
            raise explain(fates)
        if self._residents.busy:
            raise explain(fates, timeout=seconds)

    def _require_life(self):
        """Raise RanksError if the ranks have ended; also if one has ended since, after restarting it."""
        if self._residents is None or self._owner != os.getpid():
            raise RanksError("these ranks have ended; make new ones with Ranks(…)")
        try:
            self._residents.drain()
            gone = dict(self._residents.gone)
        except LauncherError:
            self.close()
            raise
        if gone:
            ends = "; ".join(lines_about(Fate(rank, died=code) for rank, code in sorted(gone.items())))
            note = self._recover(is_interrupted=False)
            raise RanksError(f"Since the last cell {ends}. {note} Run the cell again.")

    def __getitem__(self, expression):
        """The value of a variable or an expression in each rank, as a list."""
        return self.run(resident.evaluate, expression)

    def __setitem__(self, name, value):
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"ranks[…] = … sets a variable, and {name!r} is not a variable name")
        self.run(resident.assign, name, value)

    def __len__(self):
        return self.world_size

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        state = "ended" if self._residents is None else self.placement.note
        return f"<Ranks: {self.world_size}, {state}>"

    def close(self):
        """End the ranks and all that they have started. May be called more than once."""
        global _current
        if self._owner != os.getpid():
            return
        with self._closed, interrupts.deferred():
            self._residents = None
            if _current is self:
                _current = None
            self._stack.close()


def current():
    """This process's Ranks. Raises RanksError if there are none."""
    if _current is None or _current._owner != os.getpid():
        raise RanksError("there are no persistent ranks: run `ranks = Ranks(4)` first")
    return _current


def _pause(seconds):
    with interrupts.allowed():
        time.sleep(seconds)


@atexit.register
def _close():
    if _current is not None:
        _current.close()
