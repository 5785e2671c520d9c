"""A pool of persistent workers: their start, their end, and their recovery after a failure."""

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
from . import request_loop
from .request_supervisor import RequestSupervisor

_READY_S = 60.0  # for ranks to start, or to join a new group
_MEET_S = 3.0
DEAF_S = 5.0  # in which an interrupt does not stop the recovery
_NOTHING = request_loop.evaluate, ("None",)  # a request that shows that a rank is ready


class Pool:
    """A pool of `world_size` ranks: call `start`, send requests through `supervisor`, and always `close`."""

    shares_memory = True  # with the notebook

    def __init__(self, world_size, placement, debug):
        self.world_size, self._placement, self._debug = world_size, placement, debug
        self.supervisor, self._handle = None, None
        self.turn = threading.RLock()  # held by the thread whose request is served
        self.restarted = set()  # ranks that have lost the variables of earlier requests
        self._gpus = {}  # environment variables that select the reserved GPUs
        self._stack, self._closing = contextlib.ExitStack(), threading.Lock()

    def start(self) -> None:
        """Start the ranks. Raises LauncherError or WorkerError if they do not start."""
        surroundings.current_folder()  # raises if it has been deleted
        stack, placement = self._stack, self._placement
        with self.turn:
            if placement.device_type == "cuda":
                # GPUs stay reserved while ranks are idle, since their memory stays in use.
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
        """Reserve a shared node's cores for this block, and call `pause(seconds)` while waiting for them.

        GPUs stay reserved until `close`. Idle ranks use no cores, so these are reserved for each request.
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
        self._call_fd = Call(request_loop.serve).dump()
        stack.callback(os.close, self._call_fd)
        _, inherited_fd = self._meeting_anew()
        supervisor = self.supervisor = RequestSupervisor(
            self._handle, self.world_size, folder, inherited_fd, self._call_fd
        )
        stack.callback(supervisor.stop)
        supervisor.start()
        self._wait_until_ready(supervisor)

    def _wait_until_ready(self, supervisor):
        self._wait_for_answers(supervisor, dict.fromkeys(range(self.world_size), _NOTHING))

    def close(self) -> None:
        """End the ranks and all processes that they have started.

        May be called again, and while another thread waits for a request.
        """
        with self._closing:
            stack, self.supervisor = self._stack.pop_all(), None
        if not self.turn.acquire(blocking=False):
            if self._handle is not None:
                self._handle.end()  # the thread that waits for a request now gets LauncherError
            self.turn.acquire()
        try:
            stack.close()
        finally:
            self.turn.release()

    def recover(self, is_interrupted: bool) -> str:
        """Make all ranks ready for the next request, and return a text that says what was restarted.

        Raises LauncherError, WorkerError or KeyboardInterrupt if that fails.
        """
        supervisor = self.supervisor
        supervisor.deaf_until = time.monotonic() + DEAF_S
        try:
            if is_interrupted or not all(
                is_in_torch_distributed(supervisor.outcomes[r].frames) for r in supervisor.busy
            ):
                supervisor.interrupt()
            supervisor.drain()
            lost = sorted({*supervisor.busy, *supervisor.gone, *supervisor.astray})
            if not lost and self._still_meets(supervisor):
                return ""
            return self._renew(supervisor, lost)
        finally:
            supervisor.deaf_until = 0.0

    def _still_meets(self, supervisor):
        """Return whether each process group still works.

        Unequal counts of collectives alone do not show that it is broken: messages between two ranks count only there.
        """
        suspects = supervisor.unequal_groups
        if not suspects:
            return True
        if self._placement.backend == "nccl":  # a barrier that never ends would block the GPUs
            return False
        meet = rendezvous.still_meet, (suspects, _MEET_S)
        # gloo reports on stderr a member that is missing in this barrier, which the student did not call.
        unseen = Output(self.world_size, io.StringIO())
        self._wait_for_answers(supervisor, dict.fromkeys(range(self.world_size), meet), unseen)
        return all(supervisor.results)

    def _renew(self, supervisor, lost):
        """Restart the ranks `lost`, have all ranks join a new process group, and return a text that says so."""
        if lost and self._placement.backend == "nccl":  # GPUs of the others wait for those lost
            lost = list(range(self.world_size))
        port, inherited_fd = self._meeting_anew()
        rejoin = (request_loop.rejoin, (port, self._placement.backend))
        supervisor.collectives.clear()
        self.restarted.update(lost)
        supervisor.restart(lost, inherited_fd, self._call_fd)
        self._wait_for_answers(
            supervisor, dict.fromkeys(range(self.world_size), rejoin) | dict.fromkeys(lost, _NOTHING)
        )
        if not lost:
            return "The ranks had not run the same collectives, so all have joined a new process group."
        has, its = ("has", "its") if len(lost) == 1 else ("have", "their")
        return (
            f"{names_of(lost).capitalize()} {has} been restarted, and {its} variables are gone. All ranks have joined "
            "a new process group: anything made with the old one, such as a DDP model, must be made again."
        )

    def _meeting_anew(self):
        """Replace the store; return its port, and the descriptor of the Surroundings of ranks that start now."""
        start = Start("Ranks", self.world_size, self._placement, self._call_fd, self._debug, self._gpus)
        self._stores.close()
        port, _, fd = self._stores.enter_context(inherited(start, self._placement.backend))
        return port, fd

    def _wait_for_answers(self, supervisor, requests, output=None):
        """Request the calls in {rank: (function, args)} and wait for them; output goes to `output`, or is shown.

        Raises WorkerError or LauncherError if a rank does not answer.
        """
        fds = {}
        try:
            for rank, (function, args) in requests.items():
                fds[rank] = Call(function, args).dump()
            output = output or Output(self.world_size)
            seconds = supervisor.request(fds, _READY_S, output)
            output.finish()
        finally:
            for fd in fds.values():
                os.close(fd)
        outcomes = supervisor.whereabouts()
        if any(outcome.has_failed for outcome in outcomes):
            raise explain(outcomes)
        if supervisor.busy:
            raise explain(outcomes, timeout=seconds)
