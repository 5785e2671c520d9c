"""Mark one submission in a process of its own, on a fresh copy of the course, and say what came of each exercise.

Whatever the student's code does, end the process, never end, start others, it costs that one exercise: the rest is
judged by a new process.
"""

import contextlib
import hmac
import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from ..processes import linux
from . import judging, submissions

PACKAGE = Path(__file__).resolve().parents[1]
MARK = "COURSE_GRADE"  # the variable that says of a process to which submission's marking it belongs
START_S = 120  # for a process to import torch, on a busy machine


@dataclass(frozen=True)
class Verdict:
    """What came of an exercise.

    `state`: "passed"; "wrong", the check's reason; "open", the stub; "missing", no cell has it; "endless", no end in
    time; "ended", the code ended its process; "tampered", it replaced what verdicts rest on; "fault", the marking
    failed, which says nothing of the answer.
    """

    exercise: str
    state: str
    reason: str
    seconds: float = 0.0


def mark(submission, limit_s=60, offline=True):
    """The Verdicts of a submission, one per exercise of its chapter. A fault is tried a second time."""
    located = {
        number: submissions.cell_of(number, submission.chapter, submission.sources)
        for number in submission.chapter.stubs
    }
    verdicts = {
        number: Verdict(number, "missing", f"no cell defines {submission.chapter.stubs[number]}")
        for number, (cell, _) in located.items()
        if cell is None
    }
    tried = set()
    while left := {number: located[number] for number in located if number not in verdicts}:
        with fresh_course() as folder:
            verdict = _judge_until_one_fails(submission, left, folder, limit_s, offline, verdicts)
        if verdict is not None and verdict.state == "fault" and verdict.exercise not in tried:
            tried.add(verdict.exercise)
        elif verdict is not None:
            verdicts[verdict.exercise] = verdict
    return [verdicts[number] for number in located]


@contextlib.contextmanager
def fresh_course():
    """A folder with a copy of the package, which the student's code may spoil, and room for what that writes."""
    folder = Path(tempfile.mkdtemp(prefix="course-grade-"))
    try:
        shutil.copytree(PACKAGE, folder / "course" / "course_utils", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "course" / "data").symlink_to(PACKAGE.parent / "data")
        (folder / "course" / "notebooks").symlink_to(PACKAGE.parent / "notebooks")
        for name in ("home", "tmp"):
            (folder / name).mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _judge_until_one_fails(submission, located, folder, limit_s, offline, verdicts):
    """Judge in one process; verdicts are put into `verdicts`.

    Returns that of the exercise at which the process ended early.
    """
    mark_of_it, key = secrets.token_hex(8), secrets.token_bytes(16)
    reading, writing = os.pipe()
    env = os.environ | {
        MARK: mark_of_it,
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": str(folder / "course"),
        "MPLBACKEND": "agg",
        "PYTHONDONTWRITEBYTECODE": "1",
        "COURSE_PANEL": "0",
    }
    for name in ("COURSE_STRICT", "COURSE_RECORD"):
        env.pop(name, None)
    task = {
        "chapter": submission.chapter.number,
        "course": submission.chapter.sources,
        "cells": submission.sources,
        "key": key.hex(),
        "exercises": [{"number": number, "cell": cell, "name": name} for number, (cell, name) in located.items()],
        "pipe": writing,
        "offline": offline,
        "parent": os.getpid(),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "course_utils.grade.judging"],
        cwd=folder / "home",
        env=env,
        pass_fds=[writing],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    os.close(writing)
    printed = deque(maxlen=20)
    drain = threading.Thread(target=_drain, args=(process.stdout, printed), daemon=True)
    drain.start()
    try:
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(task).encode())
        return _listen(process, reading, key, limit_s, verdicts, list(located), printed, folder / "course")
    finally:
        os.close(reading)
        linux.kill_group(process.pid)
        linux.kill_marked(MARK, mark_of_it)
        process.wait()
        process.stdout.close()


def _listen(process, reading, key, limit_s, verdicts, numbers, printed, course):
    """Take verdicts until all are there (None), or the process ends, takes too long or spoils its
    copy of the course: the Verdict of that exercise.
    """
    lines, current, begun = _Lines(reading, key), None, time.monotonic()
    before = _stamps(course)
    while any(number not in verdicts for number in numbers):
        limit = START_S if current is None else limit_s
        said = lines.next(begun + limit - time.monotonic())
        now = time.monotonic()
        if said is None:
            number = current or next(number for number in numbers if number not in verdicts)
            return _of_an_early_end(number, current, lines.is_closed, process, printed, now - begun)
        if "begins" in said:
            current, begun = said["begins"], now
        elif "number" in said and said["number"] == current:
            verdict = Verdict(current, said["state"], said["reason"], round(now - begun, 2))
            if _stamps(course) != before:
                verdict = replace(verdict, state="tampered", reason="its code writes into the course's own files")
            if verdict.state in ("fault", "tampered"):
                return verdict
            verdicts[current], current = verdict, None
            begun = now
    return None


def _stamps(course):
    """{file: (bytes, when it was written)} of a copy of the course."""
    found = {}
    for path in (course / "course_utils").rglob("*.py"):
        stat = path.stat()
        found[path] = (stat.st_size, stat.st_mtime_ns)
    return found


def _of_an_early_end(number, current, is_closed, process, printed, seconds):
    tail = " / ".join(line for line in printed if line.strip())[-300:]
    if current is None:
        return Verdict(
            number, "fault", f"the process that judges did not start: {tail or 'it said nothing'}", round(seconds, 2)
        )
    if not is_closed:
        return Verdict(number, "endless", f"no end within {seconds:.0f} s", round(seconds, 2))
    code = process.wait()
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return Verdict(
        number,
        "ended",
        f"its code ended the process ({how})" + (f": {tail}" if tail and code else ""),
        round(seconds, 2),
    )


class _Lines:
    """What the judging process says: whole lines with the right signature, everything else is not heard."""

    def __init__(self, fd, key):
        self._fd, self._key, self._rest, self.is_closed = fd, key, b"", False
        self._selector = selectors.DefaultSelector()
        self._selector.register(fd, selectors.EVENT_READ)

    def next(self, timeout_s):
        """The next message, or None when time is up or nobody can write any more."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                with contextlib.suppress(ValueError, TypeError):
                    text, signature = json.loads(line)
                    if hmac.compare_digest(judging.signature(text, self._key), signature):
                        return json.loads(text)
                continue
            if not self._selector.select(max(0.0, deadline_s - time.monotonic())):
                return None
            data = os.read(self._fd, 65536)
            if not data:
                self.is_closed = True
                return None
            self._rest = (self._rest + data)[-10_000_000:]


def _drain(stream, printed):
    with contextlib.suppress(ValueError, OSError):
        for line in iter(lambda: stream.readline(10_000), b""):
            printed.append(line.decode(errors="replace").rstrip()[:300])
