"""A live notebook kernel, and the proof that a launch left nothing behind.

Every process that a kernel starts, directly or not, carries the kernel's mark in its environment: so also a daemon
that has cut all ties is found. Temporary files go to a folder of the kernel's own.
"""

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from jupyter_client import KernelManager

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT_S = 100  # after which something will not happen any more, on the slowest of machines
_MARK = "COURSE_TEST_KERNEL"
_SHARED = Path("/dev/shm")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_STACKS = """
def _(file=open({path!r}, "w")):
    import faulthandler, signal
    faulthandler.register(signal.SIGUSR2, file, all_threads=True)
_()
"""
_SETUP = """
import ctypes, functools, os, random, signal, socket, subprocess, sys, threading, time
import numpy as np, torch, torch.distributed as dist
from course_utils import WorkerError, launch, log
from course_utils.launch import latest_run, warm
warm()
def nothing(): pass
launch(nothing, world_size=2)
"""


@dataclass
class Outcome:
    """What a cell did: what it showed, its error as the student reads it, and how long it took."""

    stdout: str = ""
    stderr: str = ""
    values: list = field(default_factory=list)  # text of what was displayed
    htmls: list = field(default_factory=list)  # of that which came as HTML
    updates: list = field(default_factory=list)  # text of what replaced something displayed
    moved: list = field(default_factory=list)  # (monotonic time, HTML) of that which came as HTML
    error: str = ""  # the name of the exception
    message: str = ""  # its text
    shown: str = ""  # the rendered traceback, without colours
    started: float = 0.0  # monotonic
    seconds: float = 0.0

    @property
    def value(self):
        assert not self.error, self.shown
        return eval(self.values[-1])


@dataclass(frozen=True)
class Traces:
    """What a kernel holds, and what it has left outside itself."""

    processes: frozenset  # beside the kernel and its forkserver
    listening: frozenset  # (address, port)
    descriptors: tuple  # kinds of the kernel's open files, sorted
    files: frozenset


class Notebook:
    """A live IPython kernel. `run` runs a cell and waits; `start` only sends it, `wait` waits for it."""

    def __init__(self, directory, setup=_SETUP, kernel_name="python3", **environment):
        self.mark, self.directory = uuid.uuid4().hex, Path(directory)
        self._older = {(pid, started) for pid, _, started in _all_processes()}  # none of them can be the kernel's
        self._older_shared = set(_SHARED.iterdir())
        self.temporary = self.directory / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        paths = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        settings = dict(os.environ, PYTHONPATH=paths, TMPDIR=str(self.temporary), IPYTHONDIR=str(self.directory))
        for name in (
            "COURSE_SHARED",
            "COURSE_LOCKS",
            "COURSE_DEVICE",
            "COURSE_MAX_WORKERS",
            "OMP_NUM_THREADS",
            "PYTHONUNBUFFERED",
        ):
            settings.pop(name, None)
        for attempts_left in reversed(range(3)):
            self._manager = KernelManager(kernel_name=kernel_name)
            self._manager.start_kernel(env=settings | {_MARK: self.mark} | environment, cwd=str(self.directory))
            self._client = self._manager.blocking_client()
            self._client.start_channels()
            try:
                self._client.wait_for_ready(timeout=60)
                break
            except RuntimeError as error:  # Jupyter has chosen ports, and a test beside this one took one of them
                self._client.stop_channels()
                if not attempts_left or "Kernel died" not in str(error):
                    raise
        self._sent = time.monotonic()
        self.pid = self._manager.provisioner.pid
        self._stacks = self.directory / "stacks.txt"
        self.run(_STACKS.format(path=str(self._stacks)) + setup)

    def start(self, source, can_type=False):
        self._sent = time.monotonic()
        return self._client.execute(source, allow_stdin=can_type)

    def type_into(self, source, answer, timeout=LIMIT_S):
        """Run a cell; `answer(prompt)` is what is typed at each of its prompts, None for nothing."""
        return self.wait(self.start(source, can_type=True), timeout, answer=answer)

    def wait(self, message_id, timeout=LIMIT_S, on_output=None, answer=None, on_display=None):
        """Return the Outcome; `on_output(text)` is called as the cell prints, `on_display(text)` as it displays.

        Raises TimeoutError.
        """
        outcome, deadline = Outcome(started=self._sent), time.monotonic() + timeout
        while True:
            if answer is not None and self._client.stdin_channel.msg_ready():
                prompt = self._client.get_stdin_msg(timeout=1)["content"]["prompt"]
                if (line := answer(prompt)) is not None:
                    self._client.input(line)
            until = deadline if answer is None else min(deadline, time.monotonic() + 0.02)
            try:
                message = self._client.get_iopub_msg(timeout=max(0.01, until - time.monotonic()))
            except Exception as error:
                if time.monotonic() < deadline and answer is not None:
                    continue
                shown = f"{outcome.stdout[-2000:]}{outcome.stderr[-2000:]}"
                raise TimeoutError(
                    f"the cell did not end within {timeout} s; it had printed:\n{shown}\n"
                    f"and the kernel stands here:\n{self.stacks()}"
                ) from error
            if message["parent_header"].get("msg_id") != message_id:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                name = content["name"]
                setattr(outcome, name, getattr(outcome, name) + content["text"])
                if on_output is not None:
                    on_output(content["text"])
            elif kind in ("execute_result", "display_data"):
                outcome.values.append(content["data"]["text/plain"])
                if on_display is not None:
                    on_display(content["data"]["text/plain"])
                outcome.htmls += [content["data"]["text/html"]] if "text/html" in content["data"] else []
            elif kind == "update_display_data":
                outcome.updates.append(content["data"]["text/plain"])
                outcome.moved.append((time.monotonic(), content["data"].get("text/html", "")))
            elif kind == "error":
                outcome.error, outcome.message = content["ename"], content["evalue"]
                outcome.shown = _ANSI.sub("", "\n".join(content["traceback"]))
            elif kind == "status" and content["execution_state"] == "idle":
                outcome.seconds = time.monotonic() - outcome.started
                return outcome

    def stacks(self):
        """Where the threads of a kernel that does not answer are."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGUSR2)
            time.sleep(0.5)
            return self._stacks.read_text()

    def run(self, source, timeout=LIMIT_S):
        """Run a cell that must succeed."""
        outcome = self.wait(self.start(source), timeout)
        assert not outcome.error, f"{outcome.shown}\n{outcome.stdout}{outcome.stderr}"
        return outcome

    def fail(self, source, timeout=LIMIT_S):
        """Run a cell that must fail."""
        outcome = self.wait(self.start(source), timeout)
        assert outcome.error, f"the cell did not fail; it printed:\n{outcome.stdout}{outcome.stderr}{outcome.values}"
        return outcome

    def interrupt(self):
        """Interrupt as Jupyter's stop button does."""
        self._manager.interrupt_kernel()

    def kill(self):
        """SIGKILL the kernel itself, none of its children."""
        os.kill(self.pid, signal.SIGKILL)

    def close(self):
        self._client.stop_channels()
        with contextlib.suppress(Exception):
            self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def processes(self):
        """All processes that carry the kernel's mark, the kernel included, and zombies among their children."""
        mark, found, parents = f"{_MARK}={self.mark}".encode(), set(), {}
        for pid, parent, started in _all_processes():
            if (pid, started) not in self._older:
                parents[pid] = parent
                with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
                    if mark in file.read():
                        found.add(pid)
        found |= {pid for pid, parent in parents.items() if parent in found}  # a zombie has no environment any more
        processes = (_safely(psutil.Process, pid) for pid in sorted(found))
        return [process for process in processes if process is not None]

    def names(self):
        return [_safely(process.name) or "" for process in self.processes()]

    def forkservers(self, among=None):
        return [
            process
            for process in (self.processes() if among is None else among)
            if _safely(process.ppid) == self.pid and "launch.forkserver" in " ".join(_safely(process.cmdline) or ())
        ]

    def workers(self, among=None):
        """Processes that are neither the kernel, nor its forkserver, nor who stands in for that while it warms up."""
        among = self.processes() if among is None else among
        known = {self.pid, *(process.pid for process in self.forkservers(among)[:1])}
        found = [process for process in among if process.pid not in known]
        return [process for process in found if _safely(process.name) != "stand-in"]

    def sleepers(self):
        """The processes among them that only sleep: what workers start to leave behind."""
        return [process for process in self.processes() if _safely(process.name) == "sleep"]

    def wait_until_warm(self):
        """Until the forkserver has imported all that it will, and serves itself."""
        wait_until(lambda: not any(_safely(p.name) == "stand-in" for p in self.processes()), "it has warmed up")

    def listening(self, among=None):
        """(address, port) of every listening socket of the kernel and all that it started, IPv6 included."""
        found, tables = set(), {}
        for process in self.processes() if among is None else among:
            network = _safely(os.readlink, f"/proc/{process.pid}/ns/net")  # a table for all processes that share one
            if network not in tables:
                tables[network] = _listening_sockets(process.pid)
            for entry in _safely(os.scandir, f"/proc/{process.pid}/fd") or ():
                found.update(tables[network].get(_safely(os.readlink, entry), ()))
        return frozenset(found)

    def files(self, among=None):
        """Temporary files, and shared memory newer than the kernel that no process of somebody else's holds."""
        found = {path for path in self.temporary.rglob("*") if not path.name.startswith("torchinductor_")}
        others = "sem.loky-", "libpod_"  # the benchmark's, podman's
        shared = {path for path in _SHARED.iterdir() if not path.name.startswith(others)}
        shared -= self._older_shared
        ours = {process.pid for process in (self.processes() if among is None else among)}
        return frozenset(map(str, found | shared - _held_by_others(shared, ours)))

    def traces(self):
        among = self.processes()  # looked for once, for all that is asked of them
        folder = Path(f"/proc/{self.pid}/fd")
        kinds = [
            re.sub(r"[\d\[\]]+", "", _safely(os.readlink, entry) or "") for entry in _safely(os.scandir, folder) or ()
        ]
        return Traces(
            processes=frozenset(process.pid for process in self.workers(among)),
            listening=self.listening(among),
            # IPython closes and opens its history when it likes.
            descriptors=tuple(sorted(kind for kind in kinds if kind and not kind.endswith("history.sqlite"))),
            files=self.files(among),
        )

    @contextlib.contextmanager
    def keeping_names(self):
        """The names of the notebook are afterwards what they were, and what its cells showed is forgotten."""
        self.run("_before = {name: value for name, value in globals().items() if name[0] != '_'}")
        yield
        self.run(
            "for _name in [name for name in globals() if name[0] != '_']:\n    del globals()[_name]\n"
            "globals().update(_before)\ndel _before\nget_ipython().displayhook.flush()"
        )

    @contextlib.contextmanager
    def leaving_nothing(self, within=LIMIT_S):
        """Assert that what happens within leaves no process, listening port, open descriptor or file behind."""
        before = self.traces()
        yield
        deadline = time.monotonic() + within
        while (difference := _difference(before, self.traces())) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not difference, f"left behind: {difference}"


def _all_processes():
    """(pid, its parent's pid, when it started) of every process."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
                yield int(name), int(fields[1]), fields[19]


def _listening_sockets(pid):
    """What a descriptor of a listening TCP socket is a link to → its [(address, port)], as the process `pid` sees it.

    psutil would read and parse all connections of the machine again for each process.
    """
    found = {}
    for version, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{version}") as file:
            for line in file:
                if " 0A " in line and (fields := line.split())[3] == "0A":  # TCP_LISTEN
                    address, port = fields[1].split(":")
                    words = struct.pack(f"={len(address) // 8}I", *(int(w, 16) for w in re.findall(".{8}", address)))
                    found[f"socket:[{fields[9]}]"] = [(socket.inet_ntop(family, words), int(port, 16))]
    return found


def _held_by_others(shared, ours):
    """The files in /dev/shm among `shared` that a living process, none of `ours`, has open or mapped."""
    held = set()
    for folder in Path("/proc").glob("[0-9]*") if shared else ():
        if int(folder.name) not in ours:
            with contextlib.suppress(OSError):
                maps = (folder / "maps").read_text()
                held |= {path for path in shared if f"{path}\n" in maps}
                opened = {_safely(os.readlink, entry) for entry in os.scandir(folder / "fd")}
                held |= {path for path in shared if str(path) in opened}
    return held


def _difference(before, after):
    found = {}
    for name in ("processes", "listening", "files"):
        if more := getattr(after, name) - getattr(before, name):
            found[name] = more
    if after.descriptors != before.descriptors:
        more = list(after.descriptors)
        for kind in before.descriptors:
            if kind in more:
                more.remove(kind)
        found |= {"descriptors": more} if more else {}
    return found


def _safely(call, *args):
    """`call(*args)`, or None where the process has just ended or may not be looked into."""
    try:
        return call(*args)
    except (psutil.Error, OSError):
        return None


def wait_until(condition, what):
    """Poll `condition` until it holds and return its value; fail where it seems that it never will."""
    deadline = time.monotonic() + LIMIT_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {LIMIT_S} s: {what}"
        time.sleep(0.02)
    return value


@contextlib.contextmanager
def sharing_elsewhere(locks):
    """Another process, whose turn it is on the shared node until it reads a line."""
    code = (
        "from course_utils.hardware import sharing\nwith sharing.reserve('another', 2, 'cpu'):\n"
        "    print('mine', flush=True)\n    input()"
    )
    variables = {"COURSE_SHARED": "1", "COURSE_LOCKS": str(locks), "JPY_SESSION_NAME": "home/theirs.ipynb"}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env=os.environ | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "mine\n"
        yield process
    finally:
        process.kill()
        process.communicate()
