"""The notebook's handle to its forkserver: start it in the background, ask it for workers, end it."""

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence

from ...processes import linux, payload
from ..watch.errors import LauncherError
from ..worker import interpreter, surroundings
from .protocol import Channel, Exited, Fork, Forked, Kill, NotForked, Signal

_PROGRAM = (
    interpreter.IMPORT_PACKAGE
    + """
from course_utils.launch.forkserver.server import serve
serve(*map(int, sys.argv[2:]))
"""
)
_END_S = 5.0


class Handle:
    """One forkserver, from its start to its end."""

    def __init__(self):
        self.owner = os.getpid()
        self.has_imported = False
        self.began_with = surroundings.read_at_import()
        self._mark = uuid.uuid4().hex
        self._stderr = os.fdopen(payload.anonymous_file("course-forkserver-stderr"), "rb+", buffering=0)
        environment = dict(os.environ, OMP_NUM_THREADS="1", PYTORCH_NVML_BASED_CUDA_CHECK="1")
        environment[surroundings.MARK] = self._mark
        ours, theirs = socket.socketpair()
        with theirs:
            # A session of its own, so that Ctrl-C in the notebook's terminal does not reach it.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, interpreter.INIT, str(theirs.fileno()), str(self.owner)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                env=environment,
                cwd="/",  # MKL does not load in a deleted folder, as the notebook's may be
                start_new_session=True,
            )
        self._channel = Channel(ours)

    def fileno(self) -> int:
        return self._channel.fileno()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send(self, message: Fork | Signal | Kill, fds: Sequence[int] = ()) -> None:
        """Send Fork (with WorkerFds, which the worker gets copies of), Signal or Kill.

        Raises LauncherError if the forkserver has ended.
        """
        try:
            self._channel.send(message, fds)
        except OSError:
            raise self._gone() from None

    def receive(self) -> list[Forked | NotForked | Exited]:
        """Wait for messages and return them. Raises LauncherError if the forkserver has ended."""
        try:
            messages = [message for message, _ in self._channel.receive()]
        except (EOFError, OSError):
            raise self._gone() from None
        self.has_imported = True
        return messages

    def end(self) -> None:
        """End the forkserver and its workers. May be called while another thread uses it."""
        if self.owner != os.getpid():
            return
        with contextlib.suppress(OSError):  # it has already ended
            self._channel.shutdown()  # close() is not enough: this process's forks may hold copies
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S if self.has_imported else 0)  # it cannot answer while it imports
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        if self._process.returncode:
            linux.kill_marked(surroundings.MARK, self._mark)  # it could not kill its workers

    def close(self) -> None:
        """Close our descriptors: after `end`, or in a fork of the notebook."""
        self._channel.close()
        self._stderr.close()

    def _gone(self):
        """Kill what an ended forkserver leaves behind, and return the LauncherError."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self.end()
        code = self._process.returncode
        said = os.pread(self._stderr.fileno(), 1 << 20, 0).decode(errors="replace").strip()
        return LauncherError(
            "the process that starts workers has ended "
            + (f"(signal {-code})" if code < 0 else f"(exit code {code})")
            + (", perhaps killed for want of memory" if code == -signal.SIGKILL else "")
            + "; run the cell again to start a new one"
            + (f". It said:\n{said[-4000:]}" if said else "")
        )


_handle: Handle | None = None
_changing = threading.Lock()
turn = threading.RLock()  # held by the thread that is in a launch


def warm() -> Handle:
    """Start this process's forkserver if there is none, and return it. It imports torch in the background."""
    global _handle
    with _changing:
        is_useless = _handle is not None and (_handle.owner != os.getpid() or not _handle.is_alive())
        # If the turn is taken, a launch still reads from it, and reports that it has ended.
        if _handle is not None and is_useless and turn.acquire(blocking=False):
            try:
                _handle.end()
                _handle.close()
                _handle = None
            finally:
                turn.release()
        if _handle is None:
            _handle = Handle()
        return _handle


def current() -> Handle:
    """Return the forkserver; start a new one if variables that libraries read at import have changed."""
    handle = warm()
    if handle.began_with != surroundings.read_at_import():
        shutdown()
        handle = warm()
    return handle


def take() -> Handle:
    """Return the forkserver to a caller who then owns and ends it, and start another for later launches."""
    global _handle
    if not turn.acquire(blocking=False):  # a launch in another thread uses it
        return Handle()
    try:
        taken = current()
        with _changing:
            if _handle is taken:  # else another thread has ended it, and its user gets LauncherError
                _handle = None
    finally:
        turn.release()
    warm()
    return taken


def shutdown() -> None:
    """End the forkserver, and with it a launch in progress. The next launch starts another."""
    global _handle
    with _changing:
        handle, _handle = _handle, None
    if handle is not None:
        handle.end()
        with turn:  # wait for a launch in another thread, which still reads from it
            handle.close()


atexit.register(shutdown)
