"""From what is known about each rank to one error that a student can act on.

The cause is the first rank that failed in time; errors that only say that a partner has gone are the cause last of
all, since the partner has its own story.
"""

import linecache
import os
import re
import signal
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from .worker import Report

_LOST_CONNECTION = re.compile(
    "connection (was )?(closed|reset|refused)|broken pipe|socket closed|closed by peer|remote process exited"
    "|ncclRemoteError|failed to recv, got 0 bytes|recv(Value|Vector|Bytes)? failed|connectFullMesh failed",
    re.IGNORECASE,
)
# Not Python 3.14's "Current thread's C stack trace", which follows the one in Python.
_STACK_HEAD = re.compile(
    r"^(?:Current thread|Thread|Stack)(?!.*C stack).*\(most recent call first\).*$", re.MULTILINE
)
_SIGNALS = {
    signal.SIGSEGV: "a segmentation fault (SIGSEGV): C code touched memory that is not its own",
    signal.SIGABRT: "its own abort (SIGABRT): C++ code met a state it could not go on from",
    signal.SIGBUS: "a bus error (SIGBUS): C code touched memory that is not there, often because /dev/shm is full",
    signal.SIGFPE: "an arithmetic fault (SIGFPE) in C code",
    signal.SIGILL: "an illegal instruction (SIGILL): a library was built for another processor",
    signal.SIGTERM: "a request to end (SIGTERM) from another process",
}


@dataclass
class Fate:
    """What is known about one rank."""

    rank: int
    returned: bool = False
    report: Report | None = None  # its exception
    died: int | None = None  # exit code, or minus the signal, of a process that ended without saying anything
    time: float = 0.0  # of the above, monotonic seconds
    frames: tuple = ()  # where it was when asked: (file name, line number, function name), outermost first

    @property
    def has_failed(self):
        return self.report is not None or self.died is not None

    @property
    def has_lost_connection(self):
        """Whether all it can say is that another rank was gone."""
        report = self.report
        return report is not None and bool(_LOST_CONNECTION.search(f"{report.type_name}: {report.message}"))

    @property
    def where(self):
        return self.report.frames if self.report is not None else self.frames


class WorkerError(RuntimeError):
    """A launch that failed.

    `rank` is the rank to look at first, `exitcode` its process's exit code (minus the signal's number if a signal
    ended it; None if it was stopped by the launcher), `traceback` its traceback as text ("" if it has none), and
    `run` what the ranks had printed, logged and returned until then.
    """

    def __init__(self, text, rank=None, exitcode=None, traceback="", run=None):
        super().__init__(text)
        self.rank, self.exitcode, self.traceback, self.run = rank, exitcode, traceback, run

    def _render_traceback_(self):
        # IPython's hook. The frames of the notebook's own process lead to launch() and teach nothing.
        head, _, rest = str(self).partition("\n")
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {head}", *rest.split("\n")]


def explain(fates, timeout=None, killed_for_memory=False):
    """Return the WorkerError for `fates`; `timeout` in seconds if it was time that ended them."""
    failed = sorted((fate for fate in fates if fate.has_failed), key=lambda fate: fate.time)
    cause = next((fate for fate in failed if not fate.has_lost_connection), failed[0] if failed else None)
    if cause is None:
        return _explain_timeout(fates, timeout)
    others = [fate for fate in fates if fate is not cause]
    if cause.has_lost_connection:
        head = _lost_connection(cause, others)
        hints = ["Every rank must call the same collectives, in the same order and equally often."]
        others = [fate for fate in others if not fate.returned]
    elif cause.report is not None:
        head, hints = f"rank {cause.rank}: {_raised(cause.report)}", []
    else:
        head, hints = f"rank {cause.rank}: {_died(cause.died, killed_for_memory)}", []
        # gloo aborts in a thread of its own, so the rank that it ends need not have been in a collective itself.
        if cause.died == -signal.SIGABRT and any(_is_in_torch_distributed(fate.where) for fate in fates):
            hints = ["gloo aborts when ranks disagree in shape or dtype: launch(…, debug=True) says who disagrees."]
    place, report = own_line(cause.where), cause.report
    if place and not cause.has_lost_connection:
        head += f"\n  at {place}"
    parts = [head, "\n".join(hints + _lines(others))]
    if report is not None and report.frames and not cause.has_lost_connection:
        parts += [f"Traceback of rank {cause.rank}, the last call last:\n" + _trace(report)]
    return WorkerError(
        "\n\n".join(part for part in parts if part),
        rank=cause.rank,
        exitcode=cause.died if report is None else report.exitcode,
        traceback="" if report is None else _with_cell_names(report.traceback),
    )


def describe_running(fates):
    """Return one line per group of ranks: where each was when asked."""
    return _lines(fates)


def frames_of_dump(text):
    """Return the frames in a stack written by faulthandler, as `Fate.frames`."""
    stack = _STACK_HEAD.split(text)[-1]
    found = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', stack.split("\n\n")[0], flags=re.MULTILINE)
    return tuple((name, int(line), function) for name, line, function in reversed(found))


def _explain_timeout(fates, timeout):
    running = [fate for fate in fates if not fate.returned]
    apart = [fate for fate in running if not _is_in_torch_distributed(fate.frames)]
    lingering = [fate for fate in fates if fate.frames]
    suspect = (apart or running or lingering or fates)[0].rank
    head = f"no end after {timeout:g} s, so all workers were stopped"
    hint = "If they only needed longer: launch(…, timeout=seconds)."
    return WorkerError("\n\n".join([head, "\n".join(_lines(fates)), hint]), rank=suspect)


def _raised(report):
    if report.exitcode is not None:
        return f"left with exit code {report.exitcode} (sys.exit) before it returned"
    message = f"{report.type_name}: {report.message}" if report.message else report.type_name
    return f"{message}\n  while {report.while_doing}" if report.while_doing else message


def _died(code, killed_for_memory):
    if code >= 0:
        return f"its process ended with exit code {code} before the worker returned (os._exit, or C code's exit)"
    if code == -signal.SIGKILL:
        if killed_for_memory:
            return "killed (SIGKILL) by the system, which had run out of memory: use a smaller model, batch or data set"
        return "killed (SIGKILL) by another process, or by the system for want of memory"
    number = -code
    return f"ended by {_SIGNALS.get(number, f'signal {number} ({signal.strsignal(number)})')}"


def _lost_connection(cause, others):
    returned = [fate.rank for fate in others if fate.returned]
    if returned:
        return f"{_names(returned)} had returned while rank {cause.rank} {_whereabouts(cause.where)}"
    return f"rank {cause.rank}: {_raised(cause.report)}\n  when it {_whereabouts(cause.where)}"


def _lines(fates):
    """One line for all ranks of which the same is to be said, in the order of the first."""
    groups = {}
    for fate in fates:
        if fate.returned and any(function == "_shutdown" for _, _, function in fate.frames):
            text = "had returned, but a thread is still running: join it, or make it a daemon thread"
        elif fate.returned:
            text = "had returned"
        elif fate.has_lost_connection:
            text = f"lost its connection when it {_whereabouts(fate.where)}"
        elif fate.report is not None:
            place = own_line(fate.where)
            text = f"failed too: {_shortened(_raised(fate.report))}" + (f"\n  at {place}" if place else "")
        elif fate.died is not None:
            text = _died(fate.died, False)
        else:
            text = _whereabouts(fate.frames)
        groups.setdefault(text, []).append(fate.rank)
    return [f"{_names(ranks)} {_plural(text) if len(ranks) > 1 else text}" for text, ranks in groups.items()]


def _shortened(text, length=120):
    line = text.partition("\n")[0]
    return line if len(line) <= length else f"{line[:length]}…"


def _plural(text):
    return text.replace("was ", "were ", 1).replace("lost its", "lost their", 1).replace("when it were", "when they were")


def _names(ranks):
    """`rank 3`, `ranks 0 and 2`, `ranks 1–3`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}–{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _whereabouts(frames):
    """`was in all_reduce at Cell In[3], line 6: dist.all_reduce(x)`."""
    own = _own(frames)
    if own is None:
        return f"was in {frames[-1][2]}" if frames else "was running (it did not say where)"
    called = [function for _, _, function in frames[own + 1 :] if function != "wrapper"]  # torch logs calls in one
    return f"was {f'in {called[0]} ' if called else ''}at {own_line(frames)}"


def own_line(frames):
    """`Cell In[3], line 6, in train: dist.all_reduce(x)`, the innermost line that the student wrote; or ""."""
    own = _own(frames)
    if own is None:
        return ""
    name, number, function = frames[own]
    source = linecache.getline(name, number).strip()
    return f"{cell_name(name)}, line {number}, in {function}" + (f":  {source}" if source else "")


def _own(frames):
    """Index of the innermost frame in code that the student wrote, else None."""
    indices = [index for index, (name, _, _) in enumerate(frames) if is_own(name)]
    return indices[-1] if indices else None


_LIBRARIES = tuple(
    {str(Path(__file__).parents[1]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))}
)


def is_own(name):
    if name in linecache.cache and not os.path.exists(name):
        return not name.startswith("<frozen")  # a cell
    installed = {"site-packages", "dist-packages"} & set(Path(name).parts)
    return os.path.isabs(name) and not installed and not name.startswith(_LIBRARIES)


def _is_in_torch_distributed(frames):
    return any("/torch/distributed/" in name.replace(os.sep, "/") for name, _, _ in frames)


def cell_name(name):
    """`Cell In[3]` for the file name that IPython gives a cell, else the path, relative where it is below here."""
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()) is not None:
        code_name = getattr(shell.compile, "format_code_name", lambda _: None)(name)
        if code_name is not None:
            return " ".join(code_name)
    return os.path.relpath(name) if name.startswith(os.getcwd() + os.sep) else name


def _trace(report):
    text = _with_cell_names(report.traceback).rstrip()
    text = text.removesuffix(f"{report.type_name}: {report.message}".rstrip()).rstrip()  # the head has said it
    return text.removeprefix("Traceback (most recent call last):\n")


def _with_cell_names(text):
    def rename(match):
        name = cell_name(match[1])
        return match[0] if name == match[1] else f"{name}, line"

    return re.sub(r'File "([^"\n]+)", line', rename, text)
