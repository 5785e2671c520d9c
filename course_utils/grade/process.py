"""The marker's handle to the process that judges a submission: start it, receive its messages, kill it.

Every wait has a limit, since a student's code may keep pipes open and processes alive.
"""

import contextlib
import hmac
import json
import os
import secrets
import selectors
import subprocess
import sys
import time
from collections import deque

import psutil

from ..hardware import num_cores
from ..processes import linux
from ..processes.core_time import Turns
from . import judging

MARK = "COURSE_GRADE"  # environment variable that marks all processes of one submission
_TURNS_S = 1  # between two measurements of waiting for cores
_PAUSE_S = 5  # later than it asked for, the marker is woken only after a pause: of a laptop whose lid was closed, a VM
_END_S = 10  # for killing all that a submission has started
_TAIL_BYTES = 5000  # kept of its output
_MOST_BYTES = 10_000_000  # of a line on the pipe


class Stopped(Exception):
    """Raised if the marking was interrupted."""


class JudgeProcess:
    """A context manager for the process that judges.

    `task` is sent to `judging.main`; the descriptor `stop` becomes readable at an interrupt. `exitcode` is None until
    the process has ended. `is_watched` is False once its watching process has ended, `is_heard` once its pipe is
    closed. `paused_s` is for how long the machine has paused.
    """

    def __init__(self, task, folder, env, stop=None):
        self.exitcode, self.is_watched, self.is_heard = None, True, True
        self.paused_s = 0.0
        self._mark, self._key, self._tail, self._pid = secrets.token_hex(8), secrets.token_bytes(16), b"", None
        self._stop, self._said, self._rest = stop, deque(), {}
        self._fds, writing = zip(os.pipe(), os.pipe(), strict=True)
        task |= {"key": self._key.hex(), "pipe": writing[0], "report": writing[1]}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "course_utils.grade.judging"],
                cwd=folder,
                env=env | {MARK: self._mark},
                pass_fds=writing,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                bufsize=0,
            )
        finally:
            for fd in writing:
                os.close(fd)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._fds[0], selectors.EVENT_READ, self._take_said)
        self._selector.register(self._fds[1], selectors.EVENT_READ, self._take_report)
        self._selector.register(self._process.stdout.fileno(), selectors.EVENT_READ, self._take_printed)
        if stop is not None:
            self._selector.register(stop, selectors.EVENT_READ)
        with contextlib.suppress(BrokenPipeError):
            line = json.dumps(task).encode() + b"\n"
            while line:
                line = line[self._process.stdin.write(line) :]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """End the process and all that it has started."""
        self._process.stdin.close()  # tells the watching process to end all
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            pass
        linux.kill_group(self._process.pid)
        linux.kill_marked(MARK, self._mark)  # in case the watching process was killed
        self._process.wait()
        self._process.stdout.close()
        self._selector.close()
        for fd in self._fds:
            os.close(fd)

    def next(self, deadline_s):
        """Return the next message, or None once time.monotonic() is past `deadline_s` or the process has ended.

        The deadline moves by the time in which the process waited for cores that other programs used, or the machine
        paused. Raises Stopped.
        """
        turns = Turns(num_cores())
        turns.held_up_s([self._process.pid])  # start measuring
        while not self._said:
            if time.monotonic() >= min(deadline_s, turns.asked + _TURNS_S):
                deadline_s += turns.held_up_s([self._process.pid])
            has_ended = self.exitcode is not None or not self.is_watched
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 and not has_ended:
                return None
            wait_s, asked = 0 if has_ended else min(left_s, _TURNS_S), time.monotonic()
            events = self._selector.select(wait_s)
            late_s = time.monotonic() - asked - wait_s
            if late_s > _PAUSE_S:
                self.paused_s, deadline_s = self.paused_s + late_s, deadline_s + late_s
            if any(key.fd == self._stop for key, _ in events):
                raise Stopped
            for key, _ in events:
                data = os.read(key.fd, 65536)
                if not data:
                    self._selector.unregister(key.fd)
                key.data(data)
            if has_ended and (not events or left_s <= -_END_S) and not self._said:
                return None
        return self._said.popleft()

    def printed(self):
        """Return the last lines that the process has printed, joined into one."""
        lines = self._tail.decode(errors="replace").splitlines()
        return " / ".join(line.strip() for line in lines if line.strip())[-300:]

    def is_stopped(self):
        """Return whether the process was stopped by SIGSTOP, and so cannot end."""
        try:
            return self._pid is not None and psutil.Process(self._pid).status() == psutil.STATUS_STOPPED
        except psutil.Error:
            return False

    def _lines(self, name, data):
        *lines, rest = (self._rest.get(name, b"") + data).split(b"\n")
        self._rest[name] = rest[-_MOST_BYTES:]
        return lines

    def _take_said(self, data):
        self.is_heard = bool(data)
        for line in self._lines("said", data):
            with contextlib.suppress(ValueError, TypeError):
                text, signature = json.loads(line)
                if hmac.compare_digest(judging.signature(text, self._key), signature):
                    self._said.append(json.loads(text))

    def _take_report(self, data):
        self.is_watched = bool(data)
        for line in self._lines("report", data):
            report = json.loads(line)
            self._pid = report.get("pid", self._pid)
            self.exitcode = report.get("exitcode")

    def _take_printed(self, data):
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
