"""Taking turns on a node that a class shares (COURSE_SHARED=1): launches stand in line for the GPUs that they use.

Each launch has a ticket, a file of its own with a number that gives its place in line and, once it is its turn, the
resources that it holds. It locks the ticket while it lives; the system releases that lock when a kernel dies, however
it dies, and a ticket that is not locked is nobody's. A node without GPUs is one resource, its cores.

The folder belongs to root and is for everybody (/dev/shm, /run/lock); whatever lies in it may be another user's trap,
so nothing is opened that is no plain file, and nothing but one's own ticket is ever written to or removed.
"""

import contextlib
import errno
import fcntl
import getpass
import json
import os
import re
import stat
import time
from pathlib import Path

from .nvml import gpus as visible_gpus

_RETRY_S = 0.05
_TICKET_BYTES = 4096  # of another's ticket, which are read
_NAME = re.compile(r"course-ticket-(\d{1,15})-(\d{1,10})")
_MOST = 10**15 - 1
_own = set()  # names of this process's tickets: to open and close one would release its lock


@contextlib.contextmanager
def reserve(name, world_size, device_type, pause=time.sleep, until=""):
    """Wait for this launch's turn; gives the environment variables that point its workers to their GPUs.

    Does nothing unless COURSE_SHARED=1. Of the visible GPUs the emptiest free ones are taken, one per rank, or one for
    all ranks if there are fewer GPUs than ranks. Who asked first for a resource gets it first. While it waits, calling
    `pause(seconds)`, it says for whom. `until` tells others what ends it, where that is not its own end.
    """
    if os.environ.get("COURSE_SHARED") != "1":
        yield {}
        return
    gpus = visible_gpus() if device_type == "cuda" else ()
    resources = [gpu.uuid for gpu in gpus] or ["cpu"]
    wanted = world_size if len(gpus) >= world_size else 1
    said = None
    notebook = os.path.basename(os.environ.get("JPY_SESSION_NAME", ""))[:60]  # its path, set by Jupyter
    who = f"{_user()} runs {name} (process {os.getpid()}){f' in {notebook}' if notebook else ''}"
    with _Ticket(f"{who}, until {until}" if until else who, resources) as ticket:
        while True:
            in_the_way = ticket.take(wanted)
            if not in_the_way:
                break
            if in_the_way != said:
                what = "a GPU" if gpus else "the CPU"
                print(f"waiting for {what} of this shared node: {'; '.join(in_the_way)}", flush=True)
                said = in_the_way
            pause(_RETRY_S)
        yield {"CUDA_VISIBLE_DEVICES": ",".join(ticket.held)} if gpus else {}


def others_at_work():
    """Return who else is running a launch on this shared node now, one text each, to label timings with."""
    if os.environ.get("COURSE_SHARED") != "1":
        return []
    return [ticket["who"] for _, ticket in sorted(_tickets(folder()).items()) if ticket["holds"]]


class _Ticket:
    """A place in line. `take` tries to get what is wanted; the ticket is given back at the end of the block."""

    def __init__(self, who, resources):
        self.held = []
        self._who, self._resources = who, resources
        self._folder = folder()

    def __enter__(self):
        with _alone(self._folder):
            numbers = [number for number, _ in _tickets(self._folder, clean=True)]
            numbers += [int(_NAME.fullmatch(name)[1]) for name in _own]
            self._number = min(max(numbers, default=0) + 1, _MOST)
            self._name = f"course-ticket-{self._number}-{os.getpid()}"
            path = self._folder / self._name
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                os.fchmod(self._fd, 0o644)  # whatever the umask: others read it
                fcntl.lockf(self._fd, fcntl.LOCK_EX)  # the process's own: what it forks does not hold it
                self._write()
            except BaseException:
                self._give_back()
                raise
            _own.add(self._name)
        return self

    def __exit__(self, *_):
        self._give_back()

    def take(self, wanted):
        """Take `wanted` of the resources if they are free and nobody waits for them in front;
        else return who is in the way.
        """
        with _alone(self._folder):
            mine = set(self._resources)
            others = [
                (number, ticket)
                for (number, _), ticket in sorted(_tickets(self._folder).items())
                if mine & {*ticket["holds"], *ticket["waits_for"]}
            ]
            in_the_way = [ticket["who"] for number, ticket in others if ticket["holds"] or number < self._number]
            waits = any(ticket["waits_for"] and number < self._number for number, ticket in others)
            held = {resource for _, ticket in others for resource in ticket["holds"]}
            free = [resource for resource in self._emptiest_first() if resource not in held]
            if waits or len(free) < wanted:
                return in_the_way
            self.held = free[:wanted]
            self._write()
            return []

    def _emptiest_first(self):
        if self._resources == ["cpu"]:
            return self._resources
        gpus = sorted(visible_gpus(), key=lambda gpu: gpu.free_bytes, reverse=True)
        return [gpu.uuid for gpu in gpus if gpu.uuid in self._resources]

    def _write(self):
        waits_for = [] if self.held else self._resources
        text = json.dumps({"who": self._who, "holds": self.held, "waits_for": waits_for}).encode()
        os.pwrite(self._fd, text, 0)
        os.ftruncate(self._fd, len(text))

    def _give_back(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._folder / self._name)
        os.close(self._fd)
        _own.discard(self._name)


def folder():
    """The folder of the tickets: COURSE_LOCKS, else one of the system's. Raises RuntimeError where it is not safe."""
    given = os.environ.get("COURSE_LOCKS")
    for folder in [given] if given else ["/dev/shm", "/run/lock", "/tmp"]:
        with contextlib.suppress(OSError):
            found = os.stat(folder)
            is_for_all = found.st_mode & 0o1777 == 0o1777 and (given or found.st_uid == 0)
            is_mine = given and found.st_uid == os.geteuid() and not found.st_mode & 0o022
            if stat.S_ISDIR(found.st_mode) and (is_for_all or is_mine):
                return Path(folder)
    raise RuntimeError(
        f"COURSE_SHARED=1 needs a folder in which everybody may write and nobody remove others' files (mode 1777), and "
        f"{given or '/dev/shm'} is none: set COURSE_LOCKS to one, the same for all users of this node"
    )


@contextlib.contextmanager
def _alone(folder):
    """Within this block no other launch of the node looks at the tickets or changes one."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # for microseconds
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # also for copies in a fork of this process
        os.close(lock)


def _tickets(folder, clean=False):
    """{(number, process): content} of the tickets of other launches that are alive; with `clean`, remove dead ones."""
    found = {}
    for name in os.listdir(folder):
        match = _NAME.fullmatch(name)
        if match and name not in _own and (content := _read(folder / name, clean)) is not None:
            found[int(match[1]), int(match[2])] = content
    return found


def _read(path, clean):
    """The content of another's ticket, or None if it is none or its launch is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # gone by now, a link, or not for us to read
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        if _is_alive(fd):
            return _content(os.pread(fd, _TICKET_BYTES, 0))
        if clean:
            with contextlib.suppress(OSError):  # another user's: in such a folder only its owner removes it
                os.unlink(path)
        return None
    finally:
        os.close(fd)


def _is_alive(fd):
    """Whether the process that made the ticket has it locked."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return True
        raise
    return False


def _content(text):
    """What a ticket says, in a form that nothing can be wrong with."""
    try:
        said = json.loads(text)
        who = "".join(letter for letter in str(said["who"])[:200] if letter.isprintable())
        holds, waits_for = ([str(each) for each in said[key]] for key in ("holds", "waits_for"))
    except (ValueError, KeyError, TypeError):
        return {"who": "somebody", "holds": [], "waits_for": []}
    return {"who": who, "holds": holds, "waits_for": waits_for}


def _user():
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without an entry in passwd, as in many containers
        return f"user {os.getuid()}"
