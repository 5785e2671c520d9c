"""The protocol between the processes of a launch: the channel, all messages, and the file descriptors sent with them.

    notebook ── Fork, Signal, Kill ─────────────────▶ forkserver
    notebook ◀─ Forked, NotForked, Exited ─────────── forkserver
    notebook ◀─ Began, Logged, Reached, Returned, Left, Raised ── worker, each over a channel of its own
    notebook ── Describe, Locate, Recall, Typed, Ask, Interrupt ▶ worker, to its listener thread
    notebook ◀─ Described, Located, Recalled, Asked, Answered ─ worker

Times are those of time.monotonic(), which is the same clock in all processes of a machine.
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

from ..worker.calls import Calls
from ..worker.consequence import Consequence
from ..worker.recorder import Record


class WorkerFds(NamedTuple):
    """A worker's own file descriptors, in the order in which they are sent with Fork.

    A channel to the notebook, the write end of a pipe for its two output streams, a file for faulthandler, and two
    payloads: (Surroundings, backend) and (function, args, kwargs). Ranks of an agent have files instead of the channel
    and the first payload.
    """

    channel: int | None
    output: int
    stacks: int
    surroundings: int | None
    call: int


# `launch` is a number: messages of earlier launches are dropped. `folder` is for the worker's temporary files, or None;
# the forkserver removes it if the notebook dies.
class Fork(NamedTuple):
    launch: int
    rank: int
    folder: str | None


class Signal(NamedTuple):
    ranks: Sequence[int]
    number: int


class Kill(NamedTuple):
    """Kill every worker and all processes that it started."""


class Forked(NamedTuple):
    launch: int
    rank: int
    pid: int


class NotForked(NamedTuple):
    launch: int
    rank: int
    reason: str  # the system's error message


class Exited(NamedTuple):
    launch: int | None  # None for an agent's rank
    rank: int
    code: int  # exit code, or minus the signal's number
    time: float


class Busy(NamedTuple):
    """Sent by a stand-in to the forkserver: workers run, and need the cores."""


class Idle(NamedTuple):
    """Sent by a stand-in to the forkserver: no worker runs any more."""


class Reached(NamedTuple):
    phase: "Phase"


class Began(NamedTuple):
    """The rank has its function, and the process group if there is one, and is about to call the function."""


class Logged(NamedTuple):
    time: float
    step: int | float | str
    values: dict[str, int | float | str]


# `calls` is what the rank has called in torch.distributed, None if it does not say; one that returns does not read it.
class Returned(NamedTuple):
    """The rank has returned; the descriptor of a payload, its result, comes with the message."""

    time: float
    calls: Record | None = None


class Left(NamedTuple):
    """The rank has ended by sys.exit(0), at `frames`: it is done, and has no result."""

    time: float
    calls: Record | None = None
    frames: tuple["Frame", ...] = ()


class Raised(NamedTuple):
    time: float
    report: "Report"
    calls: Calls | None = None


class Ask(NamedTuple):
    """Asks a persistent rank for a call; a payload, (function, args, kwargs), comes with the message."""

    number: int
    can_be_interrupted: bool


# `report` is None if the rank has returned; a payload, its result, then comes with the message. `collectives` counts
# the collectives of each process group. `is_well` is False if its GPU no longer works: some errors break the context.
class Answered(NamedTuple):
    number: int
    time: float
    report: "Report | None"
    collectives: dict[str, int | None]
    is_well: bool


class Describe(NamedTuple):
    """Asks a rank for its stack and the values of its variables."""


class Described(NamedTuple):
    frames: "tuple[Frame, ...]"


class Locate(NamedTuple):
    """Asks a rank for its stack only: quicker than Describe, and keeps no values alive."""


class Located(NamedTuple):
    frames: "tuple[Frame, ...]"
    collectives: dict[str, int | None]


class Interrupt(NamedTuple):
    """Interrupts a persistent rank on another machine; on this machine, that is a signal."""


class Recall(NamedTuple):
    """Asks a rank what it has called in torch.distributed."""


class Recalled(NamedTuple):
    calls: Calls


class Asked(NamedTuple):
    """A debugger asks for a line of input."""

    prompt: str


class Typed(NamedTuple):
    """The line of input, or None and the reason."""

    line: str | None
    refusal: str


class Phase(enum.Enum):
    """How far a rank has come, if its stack alone does not show why it waits."""

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

    `locals` is {name: description of its value}, empty except for the student's own functions.
    """

    locals: dict[str, str]

    def __new__(cls, file: str, line: int, function: str, held: Any = ()) -> "Frame":
        frame = super().__new__(cls, file, line, function)
        frame.locals = dict(held)
        return frame


@dataclass(frozen=True)
class Report:
    """An exception in a worker, as plain values that can be pickled."""

    type_name: str
    message: str
    traceback: str  # as Python prints it, from the worker function on
    frames: tuple[Frame, ...]  # outermost first
    while_doing: str  # what the launcher was doing, "" while the worker function ran
    exitcode: int | None = None  # the code given to sys.exit
    type_module: str = "builtins"
    is_ours: bool = False  # raised before the student's code: the launcher's fault, or the system's
    consequence: Consequence | None = None
    has_quit: bool = False  # the student has quit its debugger


_HEADER = struct.Struct("<IB")  # length of the pickle in bytes, number of descriptors


def frames_in(data: bytes | bytearray) -> Iterator[tuple[Any, int, int]]:
    """Yield (message, number of its descriptors, offset of its end in `data`) of each complete frame."""
    begin = 0
    while len(data) >= begin + _HEADER.size:
        length, num_fds = _HEADER.unpack_from(data, begin)
        begin += _HEADER.size
        if len(data) < begin + length:
            return
        yield pickle.loads(memoryview(data)[begin : begin + length]), num_fds, begin + length
        begin += length


def frame(message: object, num_fds: int = 0) -> bytes:
    """Return a message as bytes that begin with their length."""
    pickled = pickle.dumps(message)
    return _HEADER.pack(len(pickled), num_fds) + pickled


_READ_BYTES = 1 << 16
_MOST_FDS = 16
_FD = struct.Struct("i")


class Channel:
    """One end of a socket pair, over which pickles travel in frames.

    Threads that send must use a lock of their own; only one thread may receive.
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
        """Send a message and copies of the descriptors `fds`. Raises OSError if the other end is closed."""
        data = frame(message, len(fds))
        if fds:
            sent = socket.send_fds(self._socket, [data], fds)
            data = data[sent:]
        self._socket.sendall(data)

    def receive(self, wait: bool = True) -> list[tuple[Any, list[int]]]:
        """Read once and return [(message, descriptors), …] of the messages complete by then, which may be none.

        Raises EOFError once the other end is closed, and BlockingIOError if `wait` is False and there is no data.
        """
        try:
            data, fds = self._read(0 if wait else socket.MSG_DONTWAIT)
        except ConnectionResetError:
            data, fds = b"", ()
        if not data:
            raise EOFError
        self._bytes += data
        self._fds.extend(fds)  # they arrive with the first byte of their message, never later
        messages, end = [], 0
        for message, num_fds, end in frames_in(self._bytes):
            messages.append((message, [self._fds.popleft() for _ in range(num_fds)]))
        del self._bytes[:end]
        return messages

    def _read(self, flags):
        """Call recvmsg directly: socket.recv_fds ignores its flags, and its descriptors would be inherited."""
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
        """Shut the connection down, also for copies of this end that other processes hold."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()
