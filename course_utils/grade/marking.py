"""Marks one submission in a process of its own, on a fresh copy of the course.

If the student's code ends the process, never ends or starts others, only that exercise fails: a new process judges the
rest.
"""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from . import submissions
from .process import JudgeProcess

PACKAGE = Path(__file__).resolve().parents[1]
# Folders of a checkout that hold answers: in build/ are chapters with their solutions, in my_course the lecturer's own.
ANSWERS = "notebooks/solutions", "tests", ".git", "my_course", "build"
START_S = 120  # for a process to read the notebook and import torch, on a busy machine


@dataclass(frozen=True)
class Verdict:
    """The verdict on an exercise.

    `state` is "passed"; "wrong", with the check's reason; "open", still the stub; "missing", no cell has it; "endless",
    it exceeded a time limit; "ended", the code ended its process; "tampered", it replaced functions that verdicts
    depend on; or "fault", the marking itself failed, which says nothing about the answer.
    """

    exercise: str
    state: str
    reason: str
    seconds: float = 0.0


def mark(path, chapter=None, limit_s=60, offline=True, stop=None, hidden=(), memory_bytes=None):
    """Return the Verdicts of the notebook at `path`, one per exercise of its chapter.

    A fault is tried a second time, and what did not end, too: the machine may have paused, as one does whose lid is
    closed. If it has paused the second time, too, that is a fault.

    `limit_s` is the time limit per exercise in seconds, `memory_bytes` the limit per process. Of the files and folders
    `hidden`, and of the course's answers, the student's code sees nothing, if the system allows that.

    Raises submissions.Unreadable, and process.Stopped once the descriptor `stop` is readable.
    """
    verdicts, tried = {}, set()
    numbers = None
    while numbers is None or len(verdicts) < len(numbers):
        with fresh_course() as folder:
            task = {
                "path": _as_hex(os.path.abspath(path)),
                "hidden": [
                    *map(_as_hex, answers(folder)),
                    *(_as_hex(each) for each in hidden if not _is_needed(each, folder)),
                ],
                "writable": [_as_hex(folder)],
                "chapters": {number: vars(each) for number, each in submissions.chapters().items()},
                "chapter": chapter,
                "limit_s": limit_s,
                "offline": offline,
                "memory_bytes": memory_bytes,
                "done": list(verdicts),
            }
            with JudgeProcess(task, folder / "home", _environment(folder), stop) as process:
                numbers, verdict = _listen(process, limit_s, verdicts, folder / "course")
        if verdict is not None and (verdict.state not in ("fault", "endless") or verdict.exercise in tried):
            verdicts[verdict.exercise] = verdict
        elif verdict is not None:
            tried.add(verdict.exercise)
    return [verdicts[number] for number in numbers]


def _as_hex(path):
    return os.fsencode(path).hex()  # a name may be of any bytes


def answers(folder):
    """Return the folders of the checkout that hold answers and nothing that a submission needs.

    Of one that holds both, as build/ does with a Python of its own, what is in it is looked at.
    """
    paths = [PACKAGE.parent / name for name in ANSWERS]
    paths = [each for path in paths for each in (path.iterdir() if _is_needed(path, folder) else [path])]
    return [path for path in paths if not _is_needed(path, folder)]


def _is_needed(path, folder):
    """Return whether a submission cannot be judged without what is in `path`."""
    path = os.path.realpath(path)
    needed = map(os.path.realpath, (folder, PACKAGE, sys.prefix, sys.base_prefix, find_spec("torch").origin))
    return any(os.path.commonpath([path, each]) == path for each in needed)


@contextlib.contextmanager
def fresh_course():
    """Make a folder with a copy of the course, a home and a temporary folder, and remove it at the end.

    Students' code may damage the copy. It contains no solutions, and no links out of it, but what Python has compiled:
    else each process, and each worker of a check, would compile the course for itself.
    """
    folder = Path(tempfile.mkdtemp(prefix="course-grade-"))
    try:
        for name in (PACKAGE.name, "data", "notebooks"):
            left_out = shutil.ignore_patterns("solutions", ".*")
            shutil.copytree(PACKAGE.parent / name, folder / "course" / name, ignore=left_out)
        for name in ("home", "tmp"):
            (folder / name).mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environment(folder):
    env = os.environ | {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": str(folder / "course"),
        "MPLBACKEND": "agg",
        "PYTHONDONTWRITEBYTECODE": "1",
        "COURSE_PANEL": "0",
    }
    # COURSE_SHARED is removed, since waiting for another user's launch would count as the answer's time.
    for name in ("COURSE_STRICT", "COURSE_RECORD", "COURSE_SHARED"):
        env.pop(name, None)
    return env


def _listen(process, limit_s, verdicts, course):
    """Put verdicts into `verdicts` until all exercises have one, or the process ends, exceeds its time, or tampers.

    Returns (the chapter's exercises, the Verdict of the exercise at which it stopped early, or None). Raises
    submissions.Unreadable.
    """
    numbers, current, begun, before = None, None, time.monotonic(), _stamps(course)
    while numbers is None or any(number not in verdicts for number in numbers):
        said = process.next(begun + (START_S if current is None else limit_s))
        now = time.monotonic()
        if said is None:
            if numbers is None:
                raise submissions.Unreadable(_why_not_read(process))
            number = current or next(number for number in numbers if number not in verdicts)
            return numbers, _of_an_early_end(number, current, process, now - begun, limit_s)
        if "unreadable" in said:
            raise submissions.Unreadable(said["unreadable"])
        if "exercises" in said:
            numbers, begun = said["exercises"], now
        elif "begins" in said:
            current, begun = said["begins"], now
        elif said.get("number") == current:
            verdict = Verdict(current, said["state"], said["reason"], round(now - begun, 2))
            if _stamps(course) != before:
                reason = "its code writes into the course's own files"
                verdict = Verdict(current, "tampered", reason, verdict.seconds)
            if verdict.state == "endless" and process.paused_s:
                verdict = Verdict(current, "fault", _paused(process), verdict.seconds)
            if verdict.state in ("fault", "endless", "tampered"):
                return numbers, verdict
            verdicts[current], current, begun = verdict, None, now
    return numbers, None


def _stamps(course):
    """Return {file: (size in bytes, st_mtime_ns)} of the modules of a copy of the course, compiled ones included."""
    found = {}
    for path in (course / PACKAGE.name).rglob("*.py*"):
        stat = path.stat()
        found[path] = (stat.st_size, stat.st_mtime_ns)
    return found


def _why_not_read(process):
    if process.exitcode is None and process.is_watched:
        return f"could not be read within {START_S} s"
    return f"could not be read: the process that reads it ended ({_how_it_ended(process)}): {process.printed()}"


def _of_an_early_end(number, current, process, seconds, limit_s):
    seconds, tail = round(seconds, 2), process.printed()
    if current is None:
        return Verdict(number, "fault", f"the process that judges did not go on: {tail or 'it said nothing'}", seconds)
    if process.exitcode is None and process.is_watched:
        if process.paused_s:
            return Verdict(number, "fault", _paused(process), seconds)
        why = f"your code did not end within {limit_s:g} s"
        why = "its code stopped its own process" if process.is_stopped() else why
        why += "" if process.is_heard else ", and it closed the file on which it is heard"
        return Verdict(number, "endless", why, seconds)
    said = f": {tail}" if tail and process.exitcode else ""
    return Verdict(number, "ended", f"its code ended the process ({_how_it_ended(process)}){said}", seconds)


def _paused(process):
    return f"no end within its time, in which this machine paused for {process.paused_s:.0f} s"


def _how_it_ended(process):
    """Return `exit code 3` or `signal SIGKILL`; real-time signals without a name have their number."""
    if process.exitcode is None:
        return "by way of the one that watches over it"
    if process.exitcode >= 0:
        return f"exit code {process.exitcode}"
    try:
        return f"signal {signal.Signals(-process.exitcode).name}"
    except ValueError:
        return f"signal {-process.exitcode}"
