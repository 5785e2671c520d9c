"""What a save leaves at its path if the program is killed on the way, or the disk is full."""

import linecache
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from ... import cells

# How many moments to fill the disk at: before the first file change, before the second, …; renaming makes two changes.
_MOST_MOMENTS = 6


@dataclass(frozen=True)
class Left:
    """What one moment of a save left at its path.

    `content` are the bytes, or None if there is no file; `line` is the answer's line that left them; `is_full` says
    whether the disk was full.
    """

    content: bytes | None
    line: str
    is_full: bool


def left_by(save, path):
    """Yield each content that `path` has while `save()` runs: what a kill at that moment would leave.

    Then run `save()` again with a full disk, which takes only some bytes of each file, from the start or from a later
    file change on; yield what its errors leave. Between runs the folder is restored.
    """
    folder, old = Path(path).parent, Path(path).read_bytes()
    own_names = os.listdir(folder)
    _put_back(path, folder, old, own_names)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that a write to a full disk raises an error
    seen, num_moments = _watch(save, path)
    yield from seen
    for since in range(min(num_moments, _MOST_MOMENTS)):
        for limit in (0, 1, len(old) // 2, len(old) - 1):
            _put_back(path, folder, old, own_names)
            yield from _watch(save, path, limit, since)[0]
    _put_back(path, folder, old, own_names)


def _watch(save, path, limit=None, since=0):
    """Return (contents of `path` in order, number of file changes).

    With a `limit` in bytes per file, the disk is full after `since` changes. A change is a file created, removed or
    changed in the folder.
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
        if event not in ("c_return", "c_exception"):  # only C calls touch files
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
    """Return a value that differs after each file change.

    It holds the names in the folder, which files are empty, and the inode, size and time of `path`.
    """
    files = {entry.name: entry.stat() for entry in os.scandir(os.path.dirname(path))}
    own = files.get(os.path.basename(path))
    return {name: stat.st_size > 0 for name, stat in files.items()}, own and (own.st_ino, own.st_size, own.st_mtime_ns)


def _own_line(frame):
    while frame is not None and not cells.is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() if frame else ""


def _put_back(path, folder, old, own_names):
    """Restore the old content of `path` in a new file, and remove files that the save added.

    A new file, so that a handle left open does not write to it; an old time stamp, so that every change shows.
    """
    for name in set(os.listdir(folder)) - set(own_names):
        os.unlink(folder / name)
    part = folder / "put back"
    part.write_bytes(old)
    os.utime(part, (0, 0))
    os.replace(part, path)
