"""The folder through which the notebook and ranks started by agents exchange messages, as files.

    call, surroundings     payloads, written before anything starts
    job                    a Job
    store                  the address of the rendezvous store, if node 0 serves it
    alive                  rewritten every two seconds while the notebook lives
    ask                    written when the ranks are to dump their stacks
    rank_3.messages        frames, as in a channel
    rank_3.messages_0      payload of the first message that has one
    rank_3.requests        the same towards a rank that serves requests: frames,
    rank_3.requests_0      and their payloads
    rank_3.out             both output streams
    rank_3.stacks          stacks, dumped when asked
    rank_3.pid             its node, and its process id there

Files are used because every cluster has a folder that all nodes see, while few let a compute node connect to the
notebook. A file is opened for each message: on NFS, other nodes see what was written only after it is closed. Times are
those of time.time(), the only clock that the machines have in common.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...processes import payload
from ..forkserver.protocol import frame, frames_in
from ..watch.errors import LauncherError

if TYPE_CHECKING:
    from ..worker.surroundings import Surroundings

_REMOVE_S = 2.0
# Between two looks for a request: at first, and after a minute without one.
_LOOK_S, _LOOK_IDLE_S, _SLOWER = 0.002, 0.04, 1.005


# `store` is (host, port), or None if node 0 is to serve one. `gpus` holds for each node the environment variables that
# select its GPUs, or is empty. `serves_requests`: the ranks are persistent.
class Job(NamedTuple):
    nodes: int
    workers_per_node: int
    store: tuple[str, int] | None
    gpus: list[dict[str, str]]
    serves_requests: bool = False


class Folder:
    """The files of one launch, by name."""

    def __init__(self, path):
        self.path = Path(path)

    def dump(self, name: str, value: object) -> None:
        """Pickle a plain value into a file, atomically."""
        part = self.path / f"{name}.part"
        part.write_bytes(pickle.dumps(value))
        part.rename(self.path / name)

    def load(self, name: str) -> Any:
        """Return the value of a file. Raises FileNotFoundError if there is none, yet or any more."""
        return pickle.loads((self.path / name).read_bytes())

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        return os.open(self.path / name, flags | os.O_CLOEXEC, 0o600)

    def of_rank(self, rank: int, kind: str) -> Path:
        return self.path / f"rank_{rank}.{kind}"

    def lack(self) -> str:
        """Return what its disk has run out of, as the end of a sentence, or ""."""
        return _lack(self.path)


def _lack(path):
    """Tell a full disk from one without inodes: both report "no space left", but `df` then shows free space."""
    with contextlib.suppress(OSError):
        found = os.statvfs(path)
        if found.f_files and not found.f_favail:
            return f"; the disk of {path} can take no further file, since it has no inodes left (df -i shows it)"
        if not found.f_bavail:
            return f"; the disk of {path} is full (df -h shows it)"
    return ""


class Writer:
    """Appends messages to the file `path`, as a Channel sends them; a payload becomes a file of its own."""

    def __init__(self, path):
        self._path, self._payloads = path, 0

    def send(self, message: object, fds: Sequence[int] = ()) -> None:
        """Append a message, after writing the payload in `fds` if there is one."""
        if fds:
            payload.copy(fds[0], _payload(self._path, self._payloads))
            self._payloads += 1
        with open(self._path, "ab", buffering=0) as file:
            file.write(frame(message, len(fds)))


class Reader:
    """Reads the messages that a Writer appends to the file `path`."""

    def __init__(self, path):
        self._path, self._offset, self._payloads = path, 0, 0
        # Converts time.time() to time.monotonic(); clocks of two machines may differ a little.
        self._to_monotonic = time.monotonic() - time.time()

    def read(self) -> list[tuple[Any, list[int]]]:
        """Return [(message, descriptors), …] of the messages since the last call."""
        found, end = [], 0
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._offset)
            for message, num_fds, end in frames_in(file.read()):
                found.append(self._opened(message, num_fds))
        self._offset += end
        return found

    def _opened(self, message, num_fds):
        if hasattr(message, "time"):
            message = message._replace(time=message.time + self._to_monotonic)
        if not num_fds:
            return message, []
        path = _payload(self._path, self._payloads)
        self._payloads += 1
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        path.unlink()  # by the reader, whose NFS client keeps it until it is closed
        return message, [fd]


def _payload(path, number):
    return path.with_name(f"{path.name}_{number}")


class RequestChannel(Writer):
    """The end of a rank that serves requests: it sends messages, and receives requests by looking for them."""

    def __init__(self, folder, rank):
        super().__init__(folder.of_rank(rank, "messages"))
        self._folder = folder
        self._reader = Reader(folder.of_rank(rank, "requests"))
        self._pause_s = _LOOK_S

    def receive(self) -> list[tuple[Any, list[int]]]:
        """Wait for requests and return [(message, descriptors), …]. Raises EOFError if the folder has gone."""
        while not (found := self._reader.read()):
            if not self._folder.path.exists():
                raise EOFError
            time.sleep(self._pause_s)
            self._pause_s = min(self._pause_s * _SLOWER, _LOOK_IDLE_S)
        self._pause_s = _LOOK_S
        return found


@contextlib.contextmanager
def made(
    parent: str | os.PathLike[str] | None, call_fd: int, captured: Surroundings, backend: str | None, job: Job
) -> Iterator[Folder]:
    """Make a Folder in `parent` with the call, its surroundings and the job, and remove it at the end.

    Raises LauncherError if it cannot be written.
    """
    path = None
    try:
        try:
            path = tempfile.mkdtemp(prefix="course-run-", dir=parent)
            folder = Folder(path)
            payload.copy(call_fd, folder.path / "call")
            payload.write((dataclasses.replace(captured, authkey=None), backend), folder.path / "surroundings")
            folder.dump("job", job)
        except OSError as error:
            where = parent or tempfile.gettempdir()
            raise LauncherError(
                f"what the ranks are to run cannot be written to {where} ({error.strerror}){_lack(where)}"
            ) from None
        yield folder
    finally:
        if path is not None:
            remove(path)


def remove(path: str | os.PathLike[str]) -> None:
    """Remove a folder into which ranks may still write."""
    deadline = time.monotonic() + _REMOVE_S
    while os.path.exists(path) and time.monotonic() < deadline:
        shutil.rmtree(path, ignore_errors=True)
