"""A queue for a node that a class shares (COURSE_SHARED=1): each launch waits for the GPUs that it needs.

Each launch has a ticket, a file whose number is its place in the queue and whose content names the resources it holds.
It locks the ticket while it lives. The system releases that lock when the process dies in any way, and an unlocked
ticket is void. A node without GPUs is one resource, its cores.

The folder belongs to root and is world-writable (/dev/shm, /run/lock), so a file in it may be another user's trap. Only
regular files are opened, and only the launch's own ticket is written or removed.
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
_TICKET_BYTES = 4096  # bytes read of another launch's ticket
_NAME = re.compile(r"course-ticket-(\d{1,15})-(\d{1,10})")
_MOST = 10**15 - 1
_own = set()  # tickets of this process: opening and closing one would release its lock


@contextlib.contextmanager
def reserve(name, world_size, device_type, pause=time.sleep, until=""):
    """Wait for this launch's turn; yields the environment variables that assign GPUs to its workers.

    Does nothing unless COURSE_SHARED=1. Takes the free visible GPUs with the most free memory: one per rank, or all if
    there are fewer GPUs than ranks. Resources go to launches in the order of their requests. While
    waiting, it prints whom it waits for and calls `pause(seconds)`. `until` tells others when this launch ends, if it
    does not end by itself.
    """
    if os.environ.get("COURSE_SHARED") != "1":
        yield {}
        return
    gpus = visible_gpus() if device_type == "cuda" else ()
    resources = [gpu.uuid for gpu in gpus] or ["cpu"]
    wanted = min(world_size, len(resources))
    said = None
    notebook = os.path.basename(os.environ.get("JPY_SESSION_NAME", ""))[:60]  # the notebook's path, set by Jupyter
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
    """Return the running launches of others on this shared node, one text each, to label timings with."""
    if os.environ.get("COURSE_SHARED") != "1":
        return []
    return [ticket["who"] for _, ticket in sorted(_tickets(folder()).items()) if ticket["holds"]]


class _Ticket:
    """A place in the queue; `take` tries to get the resources, and leaving the block returns the ticket."""

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
                os.fchmod(self._fd, 0o644)  # readable by others whatever the umask
                fcntl.lockf(self._fd, fcntl.LOCK_EX)  # a process lock: forks do not hold it
                self._write()
            except BaseException:
                self._give_back()
                raise
            _own.add(self._name)
        return self

    def __exit__(self, *_):
        self._give_back()

    def take(self, wanted):
        """Take `wanted` resources if free and no earlier launch waits for them; else return who blocks them."""
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
    """The folder of the tickets: COURSE_LOCKS, else one of the system's; raises RuntimeError if none is safe."""
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
    """Within this block no other launch of the node reads or changes the tickets."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held for microseconds
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # also for copies in a fork of this process
        os.close(lock)


def _tickets(folder, clean=False):
    """The living tickets of other launches, {(number, process): content}; with `clean`, remove dead ones."""
    found = {}
    for name in os.listdir(folder):
        match = _NAME.fullmatch(name)
        if match and name not in _own and (content := _read(folder / name, clean)) is not None:
            found[int(match[1]), int(match[2])] = content
    return found


def _read(path, clean):
    """The content of another launch's ticket, or None if it is invalid or its launch is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # gone, a link, or not readable for us
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        if _is_alive(fd):
            return _content(os.pread(fd, _TICKET_BYTES, 0))
        if clean:
            with contextlib.suppress(OSError):  # another user's, and only its owner can remove it
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
    """The content of a ticket with its types checked, or placeholders if it is malformed."""
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
    except (KeyError, OSError):  # no entry in passwd, as in many containers
        return f"user {os.getuid()}"
