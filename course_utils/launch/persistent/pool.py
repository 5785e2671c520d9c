"""A pool of persistent workers: their start, their end, and how they are brought back when some of them are lost."""

import contextlib
import io
import os
import threading
import time
from collections.abc import Callable, Iterator

from ...hardware import sharing
from ...processes import interrupts
from ..call import Call
from ..forkserver import handle, rendezvous
from ..place import Start, inherited
from ..watch.explain import explain
from ..watch.outcome import is_in_torch_distributed, names_of
from ..watch.streams import Output
from ..worker import surroundings
from . import loop
from .serving import Serving

_READY_S = 60.0  # until ranks that start, or join a new group, say so
_MEET_S = 3.0
_DEAF_S = 5.0  # in which an interrupt does not stop ranks from being brought back
_NOTHING = loop.evaluate, ("None",)  # to ask of a rank that is to say that it is there


class Pool:
    """`world_size` processes with a process group. `start`, then ask `serving`, and `close` in any case."""

    def __init__(self, world_size, placement, debug):
        self.world_size, self._placement, self._debug = world_size, placement, debug
        self.serving, self._handle = None, None
        self.turn = threading.RLock()  # held by the thread that asks them
        self._gpus = {}  # the environment variables that choose those reserved
        self._stack, self._closing = contextlib.ExitStack(), threading.Lock()

    def start(self) -> None:
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
    def at_work(self, pause: Callable[[float], object]) -> Iterator[None]:
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
        self._call_fd = Call(loop.serve).dump()
        stack.callback(os.close, self._call_fd)
        _, inherited_fd = self._meeting_anew()
        serving = self.serving = Serving(self._handle, self.world_size, folder, inherited_fd, self._call_fd)
        stack.callback(serving.stop)
        serving.start()
        self._wait_for_answers(serving, dict.fromkeys(range(self.world_size), _NOTHING))

    def close(self) -> None:
        """End them and all that they have started. May be called again, and while another thread asks them."""
        with self._closing:
            stack, self.serving = self._stack.pop_all(), None
        if not self.turn.acquire(blocking=False):
            if self._handle is not None:
                self._handle.end()  # whoever waits for them now hears that they are gone
            self.turn.acquire()
        try:
            stack.close()
        finally:
            self.turn.release()

    def recover(self, is_interrupted: bool) -> str:
        """Make all ranks ready for the next request, and return in words what that took.

        Raises what stops that.
        """
        serving = self.serving
        serving.deaf_until = time.monotonic() + _DEAF_S
        try:
            if is_interrupted or not all(is_in_torch_distributed(serving.outcomes[r].frames) for r in serving.busy):
                serving.interrupt()
            serving.drain()
            lost = sorted({*serving.busy, *serving.gone, *serving.astray})
            if not lost and self._still_meets(serving):
                return ""
            if lost and self._placement.backend == "nccl":  # a missing member leaves the others' GPUs waiting
                lost = list(range(self.world_size))
            self._renew(serving, lost)
        finally:
            serving.deaf_until = 0.0
        if not lost:
            return "The ranks had not run the same collectives, so all have joined a new process group."
        has, its = ("has", "its") if len(lost) == 1 else ("have", "their")
        return (
            f"{names_of(lost).capitalize()} {has} been restarted, and {its} variables are gone. All ranks have joined "
            "a new process group: anything made with the old one, such as a DDP model, must be made again."
        )

    def _still_meets(self, serving):
        """Whether each process group still works: messages between two ranks count in some of its members only."""
        suspects = serving.unequal_groups
        if not suspects:
            return True
        if self._placement.backend == "nccl":  # a barrier that does not end would hold the GPUs
            return False
        meet = rendezvous.still_meet, (suspects, _MEET_S)
        # gloo says on stderr that a member does not come: the student has called no such function
        unseen = Output(self.world_size, io.StringIO())
        self._wait_for_answers(serving, dict.fromkeys(range(self.world_size), meet), unseen)
        return all(serving.results)

    def _renew(self, serving, lost):
        """Restart the ranks `lost`, and have all join a new process group."""
        port, inherited_fd = self._meeting_anew()
        rejoin = (loop.rejoin, (port, self._placement.backend))
        serving.collectives.clear()
        serving.restart(lost, inherited_fd, self._call_fd)
        self._wait_for_answers(serving, dict.fromkeys(range(self.world_size), rejoin) | dict.fromkeys(lost, _NOTHING))

    def _meeting_anew(self):
        """Make a new store for ranks to meet at; its port, and the descriptor of what ranks inherit that start now."""
        start = Start("Ranks", self.world_size, self._placement, self._call_fd, self._debug, self._gpus)
        self._stores.close()
        port, _, fd = self._stores.enter_context(inherited(start, self._placement.backend))
        return port, fd

    def _wait_for_answers(self, serving, requests, output=None):
        """Ask each rank in {rank: (function, args)}. Raises WorkerError or LauncherError if one does not answer.

        What they print goes to `output`, or is shown.
        """
        fds = {}
        try:
            for rank, (function, args) in requests.items():
                fds[rank] = Call(function, args).dump()
            output = output or Output(self.world_size)
            seconds = serving.request(fds, _READY_S, output)
            output.finish()
        finally:
            for fd in fds.values():
                os.close(fd)
        outcomes = serving.whereabouts()
        if any(outcome.has_failed for outcome in outcomes):
            raise explain(outcomes)
        if serving.busy:
            raise explain(outcomes, timeout=seconds)
