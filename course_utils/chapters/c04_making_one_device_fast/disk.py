"""What a save leaves at its path if the program is killed in the middle of it, or the disk is full."""

import linecache
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from ... import cells

_MOST_MOMENTS = 6  # from which on the disk is full; those of a save to another file that is renamed are two


@dataclass(frozen=True)
class Left:
    """The bytes at the path (None: there is no file), the line of the answer's that left them, and
    whether the disk was full.
    """

    content: bytes | None
    line: str
    is_full: bool


def left_by(save, path):
    """Yield what is at `path` whenever it is another while `save()` runs, which is what a kill at that moment leaves.

    Then again with a disk that takes no more than some bytes of each file, from the start or from a later moment on:
    what is there while its errors pass through the answer, and at the end. In between, the folder is put back as it
    was.
    """
    folder, old = Path(path).parent, Path(path).read_bytes()
    own_names = os.listdir(folder)
    _put_back(path, folder, old, own_names)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write to a full disk then raises an error
    seen, num_moments = _watch(save, path)
    yield from seen
    for since in range(min(num_moments, _MOST_MOMENTS)):
        for limit in (0, 1, len(old) // 2, len(old) - 1):
            _put_back(path, folder, old, own_names)
            yield from _watch(save, path, limit, since)[0]
    _put_back(path, folder, old, own_names)


def _watch(save, path, limit=None, since=0):
    """Return (what was at `path`, how often a file came, went or was changed there);
    the disk is full after `since` of these.
    """
    seen, line, moments = [], "", [_moment(path)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_the_disk():
        if limit is not None and len(moments) - 1 == since:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))

    def note():
        content = Path(path).read_bytes() if os.path.exists(path) else None
        if not seen or seen[-1].content != content:
            seen.append(Left(content, line, limit is not None))

    def look(frame, event, argument):
        nonlocal line
        if event not in ("c_return", "c_exception"):  # nothing else touches files
            return
        line = _own_line(frame) or line
        if (now := _moment(path)) != moments[-1]:
            moments.append(now)
            note()
            fill_the_disk()

    fill_the_disk()
    before = sys.getprofile()
    sys.setprofile(look)
    try:
        save()
    except Exception:
        if limit is None:
            raise
    finally:
        sys.setprofile(before)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    note()
    return seen, len(moments) - 1


def _moment(path):
    """What changes when something has happened to the files there:
    which there are, which are empty, and all about `path`.
    """
    files = {entry.name: entry.stat() for entry in os.scandir(os.path.dirname(path))}
    own = files.get(os.path.basename(path))
    return {name: stat.st_size > 0 for name, stat in files.items()}, own and (own.st_ino, own.st_size, own.st_mtime_ns)


def _own_line(frame):
    while frame is not None and not cells.is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() if frame else ""


def _put_back(path, folder, old, own_names):
    """Make another file, so that one which the answer has left open is none of it, and an old one,
    so that any change shows.
    """
    for name in set(os.listdir(folder)) - set(own_names):
        os.unlink(folder / name)
    part = folder / "put back"
    part.write_bytes(old)
    os.utime(part, (0, 0))
    os.replace(part, path)
