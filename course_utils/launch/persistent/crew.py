"""The processes of `Ranks`: their start, their end, and how they are brought back when some of them are lost."""

import contextlib
import io
import os
import threading
import time

from ...hardware import sharing
from ...processes import interrupts, payload
from .. import call
from ..forkserver import handle, rendezvous
from ..watch.failure import explain, is_in_torch_distributed, names_of
from ..watch.streams import Output
from ..worker import surroundings
from . import resident
from .residents import Residents

_READY_S = 60.0  # until ranks that start, or join a new group, say so
_MEET_S = 3.0
_DEAF_S = 5.0  # in which an interrupt does not stop ranks from being brought back
_NOTHING = resident.evaluate, ("None",)  # to ask of a rank that is to say that it is there


class Crew:
    """`world_size` processes with a process group. `start`, then ask `residents`, and `close` in any case."""

    def __init__(self, world_size, placement, debug):
        self.world_size, self._placement, self._debug = world_size, placement, debug
        self.residents, self._handle = None, None
        self.turn = threading.RLock()  # held by the thread that asks them
        self._gpus = {}  # the environment variables that choose those reserved
        self._stack, self._closing = contextlib.ExitStack(), threading.Lock()

    def start(self):
        """Raises LauncherError or WorkerError where they do not start."""
        surroundings.current_folder()  # if it has been deleted, nothing is started
        stack, placement = self._stack, self._placement
        with self.turn:
            if placement.device_type == "cuda":
                # Also while they are idle: their memory stays full.
                turn = sharing.reserve(
                    "Ranks", self.world_size, "cuda", interrupts.sleep, until="it runs ranks.close() or is shut down"
                )
                self._gpus = stack.enter_context(turn)
                if self._gpus:
                    print("these ranks keep their GPUs of this shared node, idle or not, until ranks.close()")
            with self.at_work(interrupts.sleep):
                self._start()

    @contextlib.contextmanager
    def at_work(self, pause):
        """Within this block they may compute: on a shared node it is their turn. `pause(seconds)` while they wait.

        Idle ranks on CPU cores hold nobody up, so they take a turn for each request.
        """
        if self._placement.device_type == "cuda":
            yield
        else:
            with sharing.reserve("Ranks", self.world_size, "cpu", pause):
                yield

    def _start(self):
        stack = self._stack
        self._handle = handle.take()
        stack.callback(self._handle.close)
        stack.callback(self._handle.end)
        folder = stack.enter_context(surroundings.folder())
        self._stores = stack.enter_context(contextlib.ExitStack())
        self._call_fd = call.dump(resident.obey, (), {})
        stack.callback(os.close, self._call_fd)
        with self._surrounded() as surroundings_fd:
            residents = Residents(self._handle, self.world_size, folder, surroundings_fd, self._call_fd)
            self.residents = residents
            stack.callback(residents.stop)
            residents.start()
            self._wait_for_answers(residents, dict.fromkeys(range(self.world_size), _NOTHING))

    def close(self):
        """End them and all that they have started. May be called again, and while another thread asks them."""
        with self._closing:
            stack, self.residents = self._stack.pop_all(), None
        if not self.turn.acquire(blocking=False):
            if self._handle is not None:
                self._handle.end()  # whoever waits for them now hears that they are gone
            self.turn.acquire()
        try:
            stack.close()
        finally:
            self.turn.release()

    def recover(self, is_interrupted):
        """Make all ranks ready for the next request, and return in words what that took.

        Raises what stops that.
        """
        residents = self.residents
        residents.deaf_until = time.monotonic() + _DEAF_S
        try:
            if is_interrupted or not all(is_in_torch_distributed(residents.fates[r].frames) for r in residents.busy):
                residents.interrupt()
            residents.drain()
            lost = sorted({*residents.busy, *residents.gone, *residents.astray})
            if not lost and self._still_meets(residents):
                return ""
            if lost and self._placement.backend == "nccl":  # a missing member leaves the others' GPUs waiting
                lost = list(range(self.world_size))
            self._renew(residents, lost)
        finally:
            residents.deaf_until = 0.0
        if not lost:
            return "The ranks had not run the same collectives, so all have joined a new process group."
        has, its = ("has", "its") if len(lost) == 1 else ("have", "their")
        return (
            f"{names_of(lost).capitalize()} {has} been restarted, and {its} variables are gone. All ranks have joined "
            "a new process group: anything made with the old one, such as a DDP model, must be made again."
        )

    def _still_meets(self, residents):
        """Whether each process group still works: messages between two ranks count in some of its members only."""
        suspects = residents.unequal_groups
        if not suspects:
            return True
        if self._placement.backend == "nccl":  # a barrier that does not end would hold the GPUs
            return False
        meet = rendezvous.still_meet, (suspects, _MEET_S)
        # gloo says on stderr that a member does not come: the student has called no such function
        unseen = Output(self.world_size, io.StringIO())
        self._wait_for_answers(residents, dict.fromkeys(range(self.world_size), meet), unseen)
        return all(residents.results)

    def _renew(self, residents, lost):
        """Restart the ranks `lost`, and have all join a new process group."""
        with self._surrounded() as surroundings_fd:
            rejoin = (resident.rejoin, (self._store.port, self._placement.backend))
            residents.collectives.clear()
            residents.restart(lost, surroundings_fd, self._call_fd)
            self._wait_for_answers(
                residents, dict.fromkeys(range(self.world_size), rejoin) | dict.fromkeys(lost, _NOTHING)
            )

    @contextlib.contextmanager
    def _surrounded(self):
        """Yield the surroundings of ranks that start now, with a new store to meet at, as a descriptor."""
        self._stores.close()
        self._store = self._stores.enter_context(rendezvous.store())
        captured = surroundings.capture(self.world_size, self._placement, self._store.port, self._debug, self._gpus)
        fd = payload.dump((captured, self._placement.backend))
        try:
            yield fd
        finally:
            os.close(fd)

    def _wait_for_answers(self, residents, requests, output=None):
        """Ask each rank in {rank: (function, args)}. Raises WorkerError or LauncherError if one does not answer.

        What they print goes to `output`, or is shown.
        """
        fds = {}
        try:
            for rank, (function, args) in requests.items():
                fds[rank] = call.dump(function, args, {})
            output = output or Output(self.world_size)
            seconds = residents.request(fds, _READY_S, output)
            output.finish()
        finally:
            for fd in fds.values():
                os.close(fd)
        fates = residents.whereabouts()
        if any(fate.has_failed for fate in fates):
            raise explain(fates)
        if residents.busy:
            raise explain(fates, timeout=seconds)
