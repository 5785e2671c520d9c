"""The kernel's handle on its forkserver: start it in the background, ask it for workers, stop it."""

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from .channel import Channel
from .failure import WorkerError
from .payload import anonymous_file


class ServerGone(WorkerError):
    """The forkserver ended while it was needed."""


class Server:
    """The kernel's handle on its forkserver."""

    def __init__(self):
        self.owner = os.getpid()
        self.has_imported = False
        ours, theirs = socket.socketpair()
        self._stderr = anonymous_file("course-forkserver-stderr")
        environment = dict(os.environ, OMP_NUM_THREADS="1", PYTORCH_NVML_BASED_CUDA_CHECK="1")
        package_parent = str(Path(__file__).parents[2])
        program = (
            f"import sys; sys.path.insert(0, {package_parent!r}); "
            f"from course_utils.launch.forkserver import serve; serve({theirs.fileno()}, {self.owner})"
        )
        with theirs:
            # A session of its own: an interrupt of the notebook is not meant for it.
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                env=environment,
                start_new_session=True,
            )
        self._channel = Channel(ours)

    def fileno(self):
        return self._channel.fileno()

    def is_alive(self):
        return self._process.poll() is None

    def fork(self, rank, folder, fds):
        """Ask for one more worker, which owns copies of the descriptors `fds`. Its `forked` message will follow.

        `folder` is for its temporary files, or None; it is removed if the notebook dies.
        """
        self._send(("fork", rank, folder), fds)

    def signal(self, ranks, signum):
        self._send(("signal", list(ranks), int(signum)))

    def kill(self):
        """Ask that every worker be killed, with all that it started. Their `exited` messages will follow."""
        self._send(("kill",))

    def receive(self):
        """Wait for messages and return a list of ("forked", rank) and ("exited", rank, status, monotonic time).

        Raises ServerGone.
        """
        try:
            messages = [message for message, _ in self._channel.receive()]
        except (EOFError, OSError):
            self._process.wait(5)
            detail = os.pread(self._stderr, 1 << 20, 0).decode(errors="replace").strip()
            raise ServerGone(
                "the process that starts workers has ended "
                f"({'signal' if self._process.returncode < 0 else 'exit code'} {abs(self._process.returncode)}), "
                "perhaps killed for want of memory; run the cell again to start a new one"
                + (f". It said:\n{detail[-4000:]}" if detail else "")
            ) from None
        self.has_imported = True
        return messages

    def close(self):
        """End the forkserver and every worker it still has."""
        if self.owner == os.getpid():
            with contextlib.suppress(OSError):  # it is gone already
                self._channel.shutdown()  # closing would not do: this process's forks may hold copies
        self._channel.close()
        os.close(self._stderr)
        if self.owner == os.getpid():
            try:
                self._process.wait(5 if self.has_imported else 0)  # it cannot answer before
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _send(self, message, fds=()):
        try:
            self._channel.send(message, fds)
        except OSError:
            while True:
                self.receive()  # raises ServerGone with the reason


_server = None
_lock = threading.Lock()


def warm():
    """Start this process's forkserver if there is none. Returns at once; torch is imported in the background."""
    global _server
    with _lock:
        if _server is not None and (_server.owner != os.getpid() or not _server.is_alive()):
            _server.close()
            _server = None
        if _server is None:
            _server = Server()
        return _server


def shutdown():
    """End the forkserver, if there is one. The next launch starts another."""
    global _server
    with _lock:
        if _server is not None:
            _server.close()
            _server = None


atexit.register(shutdown)
