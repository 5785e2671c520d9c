"""What the processes of a launch say to one another: the channel, every message, and the descriptors that travel along.

    notebook ── Fork, Signal, Kill ─────────────────▶ forkserver
    notebook ◀─ Forked, NotForked, Exited ─────────── forkserver
    notebook ◀─ Began, Logged, Reached, Returned, Left, Raised ── worker, each over a channel of its own
    notebook ── Describe, Locate, Typed, Ask ───────▶ worker, to a thread that listens
    notebook ◀─ Described, Located, Asked, Answered ─ worker

Times are time.monotonic(), which all processes of a machine share.
"""

import enum
import os
import pickle
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..worker.consequence import Consequence


class WorkerFds(NamedTuple):
    """A worker's own descriptors, in the order in which they travel with Fork.

    A channel to the notebook, the writing end of a pipe for its two output streams, a file for faulthandler, and two
    payloads, (Surroundings, backend) and (function, args, kwargs). Ranks of an agent have files instead of the channel
    and the first payload.
    """

    channel: int | None
    output: int
    stacks: int
    surroundings: int | None
    call: int


# `launch` is a number: what is said of an earlier launch is nobody's business any more. `folder` is for a worker's
# temporary files, or None; it is removed if the notebook dies.
class Fork(NamedTuple):
    launch: int
    rank: int
    folder: str | None


class Signal(NamedTuple):
    ranks: Sequence[int]
    number: int


class Kill(NamedTuple):
    """Every worker, with all that it started."""


class Forked(NamedTuple):
    launch: int
    rank: int
    pid: int


class NotForked(NamedTuple):
    launch: int
    rank: int
    reason: str  # the system's words


class Exited(NamedTuple):
    launch: int | None  # None of an agent's rank
    rank: int
    code: int  # exit code, or minus the signal
    time: float


class Busy(NamedTuple):
    """Of a stand-in, to the forkserver that warms up behind it: workers run."""


class Idle(NamedTuple):
    """None runs any more."""


class Reached(NamedTuple):
    phase: "Phase"


class Began(NamedTuple):
    """It has its function, and the process group if there is to be one."""


class Logged(NamedTuple):
    time: float
    step: int | float | str
    values: dict[str, int | float | str]


class Returned(NamedTuple):
    """With it comes a descriptor: a payload, the result."""

    time: float


class Left(NamedTuple):
    """By sys.exit(0): a rank that is done and has nothing to return."""

    time: float


class Raised(NamedTuple):
    time: float
    report: "Report"


class Ask(NamedTuple):
    """Of a rank that persists; with it comes a payload, (function, args, kwargs)."""

    number: int
    can_be_interrupted: bool


# `report` is None where it has returned: then a payload comes along, the result. `collectives` is what its process
# groups have been through; `is_well` says whether its GPU still works: after some errors no call reaches it any more.
class Answered(NamedTuple):
    number: int
    time: float
    report: "Report | None"
    collectives: dict[str, int | None]
    is_well: bool


class Describe(NamedTuple):
    """Where are you, and what do your variables hold?"""


class Described(NamedTuple):
    frames: "tuple[Frame, ...]"


class Locate(NamedTuple):
    """Where are you? Quicker than Describe, and keeps nothing alive."""


class Located(NamedTuple):
    frames: "tuple[Frame, ...]"
    collectives: dict[str, int | None]


class Asked(NamedTuple):
    """A debugger wants a line."""

    prompt: str


class Typed(NamedTuple):
    """The line, or None and why there is none."""

    line: str | None
    refusal: str


class Phase(enum.Enum):
    """How far a rank has come, where its stack alone would not say why it waits."""

    RUNS = "runs the worker function"
    ANSWERED = "is past the student's function, which a check has called"
    WAITS_FOR_GPU = "has returned from the worker function, and its GPU still has to do what it was asked to"
    WAITS_FOR_THREADS = "has sent its result, and a thread that is no daemon still runs"


class _Place(NamedTuple):
    file: str
    line: int
    function: str


class Frame(_Place):
    """A place in a rank's stack: (file name, line number, function name).

    `locals` is {name: text}: what the function's names held, in words; empty but for the student's own functions.
    """

    locals: dict[str, str]

    def __new__(cls, file: str, line: int, function: str, locals: Any = ()) -> "Frame":
        frame = super().__new__(cls, file, line, function)
        frame.locals = dict(locals)
        return frame


@dataclass(frozen=True)
class Report:
    """An exception in a worker, in plain values."""

    type_name: str
    message: str
    traceback: str  # as Python prints it, from the worker function on
    frames: tuple[Frame, ...]  # outermost first
    while_doing: str  # what the launcher was doing if the worker function was not running, else ""
    exitcode: int | None = None  # the code given to sys.exit
    type_module: str = "builtins"
    is_ours: bool = False  # the launcher's fault, or the system's, in what it does before the student's code
    consequence: Consequence | None = None
    has_quit: bool = False  # the student has left its debugger for good


_HEADER = struct.Struct("<IB")  # bytes of the pickle, number of descriptors that come with it


def frames_in(data: bytes | bytearray) -> Iterator[tuple[Any, int, int]]:
    """Yield (message, number of descriptors that come with it, bytes up to its end) of each frame
    that is whole in `data`.
    """
    begin = 0
    while len(data) >= begin + _HEADER.size:
        length, num_fds = _HEADER.unpack_from(data, begin)
        begin += _HEADER.size
        if len(data) < begin + length:
            return
        yield pickle.loads(memoryview(data)[begin : begin + length]), num_fds, begin + length
        begin += length


def frame(message: object, num_fds: int = 0) -> bytes:
    """A message as bytes, which say how long they are."""
    pickled = pickle.dumps(message)
    return _HEADER.pack(len(pickled), num_fds) + pickled


_READ_BYTES = 1 << 16
_MOST_FDS = 16
_FD = struct.Struct("i")


class Channel:
    """One end: pickles in frames over a socket pair.

    A sender's threads take care of their order; one thread receives.
    """

    def __init__(self, end):
        self._socket = end
        self._bytes, self._fds = bytearray(), deque()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_between_messages(self) -> bool:
        return not self._bytes

    def send(self, message: object, fds: Sequence[int] = ()) -> None:
        """Send a message, and copies of the descriptors `fds`. Raises OSError if the other end is gone."""
        data = frame(message, len(fds))
        if fds:
            sent = socket.send_fds(self._socket, [data], fds)
            data = data[sent:]
        self._socket.sendall(data)

    def receive(self, wait: bool = True) -> list[tuple[Any, list[int]]]:
        """Return [(message, descriptors), …], all that one read brings: often none is complete yet, or several are.

        Raises EOFError once the other end is closed, and BlockingIOError if `wait` is False and nothing is there.
        """
        try:
            data, fds = self._read(0 if wait else socket.MSG_DONTWAIT)
        except ConnectionResetError:
            data, fds = b"", ()
        if not data:
            raise EOFError
        self._bytes += data
        self._fds.extend(fds)  # they come with the first byte of their message, so never later than it
        messages, end = [], 0
        for message, num_fds, end in frames_in(self._bytes):
            messages.append((message, [self._fds.popleft() for _ in range(num_fds)]))
        del self._bytes[:end]
        return messages

    def _read(self, flags):
        """recvmsg by hand: socket.recv_fds ignores its flags, and its descriptors would be inherited."""
        cloexec = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        space = socket.CMSG_SPACE(_MOST_FDS * _FD.size)
        data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, space, flags | cloexec)
        fds = [
            fd
            for level, kind, content in ancillary
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            for (fd,) in _FD.iter_unpack(content[: len(content) // _FD.size * _FD.size])
        ]
        if not cloexec:
            for fd in fds:
                os.set_inheritable(fd, False)
        return data, fds

    def shutdown(self) -> None:
        """End the conversation, also for copies of this end that other processes hold."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()
