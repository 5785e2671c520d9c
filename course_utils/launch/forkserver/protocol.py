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
from collections import deque, namedtuple
from dataclasses import dataclass

from ..worker.consequence import Consequence

# A worker's own descriptors, in the order in which they travel with Fork: a channel to the notebook, the writing end of
# a pipe for its two output streams, a file for faulthandler, and two payloads, (Surroundings, backend) and (function,
# args, kwargs).
WorkerFds = namedtuple("WorkerFds", "channel output stacks surroundings call")

# `launch` is a number: what is said of an earlier launch is nobody's business any more. `folder` is for a worker's
# temporary files, or None; it is removed if the notebook dies.
Fork = namedtuple("Fork", "launch rank folder")
Signal = namedtuple("Signal", "ranks number")
Kill = namedtuple("Kill", "")  # every worker, with all that it started

Forked = namedtuple("Forked", "launch rank pid")
NotForked = namedtuple("NotForked", "launch rank reason")  # the system's words
Exited = namedtuple("Exited", "launch rank code time")  # exit code, or minus the signal
Busy = namedtuple("Busy", "")  # of a stand-in, to the forkserver that warms up behind it: workers run
Idle = namedtuple("Idle", "")  # none runs any more

Reached = namedtuple("Reached", "phase")  # a Phase
Began = namedtuple("Began", "")  # it has its function, and the process group if there is to be one
Logged = namedtuple("Logged", "time step values")
Returned = namedtuple("Returned", "time")  # with it comes a descriptor: a payload, the result
Left = namedtuple("Left", "time")  # by sys.exit(0): a rank that is done and has nothing to return
Raised = namedtuple("Raised", "time report")

# Of a rank that persists; with it comes a payload, (function, args, kwargs).
Ask = namedtuple("Ask", "number can_be_interrupted")
# `report` is None where it has returned: then a payload comes along, the result. `collectives` is what its process
# groups have been through; `is_well` says whether its GPU still works: after some errors no call reaches it any more.
Answered = namedtuple("Answered", "number time report collectives is_well")

Describe = namedtuple("Describe", "")  # where are you, and what do your variables hold?
Described = namedtuple("Described", "frames")
Locate = namedtuple("Locate", "")  # where are you? Quicker than Describe, and keeps nothing alive
Located = namedtuple("Located", "frames collectives")
Asked = namedtuple("Asked", "prompt")  # a debugger wants a line
Typed = namedtuple("Typed", "line refusal")  # the line, or None and why there is none


class Phase(enum.Enum):
    """How far a rank has come, where its stack alone would not say why it waits."""

    RUNS = "runs the worker function"
    ANSWERED = "is past the student's function, which a check has called"
    WAITS_FOR_GPU = "has returned from the worker function, and its GPU still has to do what it was asked to"
    WAITS_FOR_THREADS = "has sent its result, and a thread that is no daemon still runs"


class Frame(namedtuple("Frame", "file line function")):
    """A place in a rank's stack: (file name, line number, function name).

    `locals` is {name: text}: what the function's names held, in words; empty but for the student's own functions.
    """

    def __new__(cls, file, line, function, locals=()):
        frame = super().__new__(cls, file, line, function)
        frame.locals = dict(locals)
        return frame


@dataclass(frozen=True)
class Report:
    """An exception in a worker, in plain values."""

    type_name: str
    message: str
    traceback: str  # as Python prints it, from the worker function on
    frames: tuple  # of Frame, outermost first
    while_doing: str  # what the launcher was doing if the worker function was not running, else ""
    exitcode: int | None = None  # the code given to sys.exit
    type_module: str = "builtins"
    is_ours: bool = False  # the launcher's fault, or the system's, in what it does before the student's code
    consequence: Consequence | None = None
    has_quit: bool = False  # the student has left its debugger for good


_HEADER = struct.Struct("<IB")  # bytes of the pickle, number of descriptors that come with it


def frames_in(data):
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


def frame(message, num_fds=0):
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

    def fileno(self):
        return self._socket.fileno()

    @property
    def is_between_messages(self):
        return not self._bytes

    def send(self, message, fds=()):
        """Send a message, and copies of the descriptors `fds`. Raises OSError if the other end is gone."""
        data = frame(message, len(fds))
        if fds:
            sent = socket.send_fds(self._socket, [data], fds)
            data = data[sent:]
        self._socket.sendall(data)

    def receive(self, wait=True):
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

    def shutdown(self):
        """End the conversation, also for copies of this end that other processes hold."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._socket.close()
