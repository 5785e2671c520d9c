"""Turn what is known about each rank into one error that a student can act on.

The cause is the rank that failed first. An error that only says that a partner has gone is the cause only if there is
no other, since the partner has its own story.
"""

import bdb
import contextlib
import os
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from ... import cells
from ..forkserver.protocol import Frame, Report
from ..worker.consequence import Consequence

_LAUNCHER = str(Path(__file__).parents[1]) + os.sep
# Places in a stack, (file, function): where ranks wait for something that a student has not written down.
_END_OF_THREADS = ("/threading.py", "_shutdown")
_END_OF_GPU_WORK = ("/course_utils/hardware/cuda.py", "wait_for_gpus")
_END_OF_ANSWER = ("/course_utils/checks/judge.py", "wait_for_the_others")
_LOG_OF_CALLS = ("/torch/distributed/c10d_logger.py", "wrapper")  # around each collective
# Not Python 3.14's "Current thread's C stack trace", which follows the one in Python.
_STACK_HEAD = re.compile(r"^(?:Current thread|Thread|Stack)(?!.*C stack).*\(most recent call first\).*$", re.MULTILINE)
_ALL_CALL_THE_SAME = (
    "Every rank must call the same collectives, in the same order, equally often, and with the same shape and dtype."
)
_NO_SHARED_MEMORY = re.compile("shared memory.*(No space left|shared memory limit)|out of shared memory", re.DOTALL)
_MORE_SHARED_MEMORY = (
    "/dev/shm is full, through which a DataLoader's processes hand over batches: start the container with "
    "--shm-size=8g, or the DataLoader with num_workers=0."
)
_ADVICE = "{}(…, debug=True) says which ranks disagree."
_SIGNALS = {
    signal.SIGSEGV: "a segmentation fault (SIGSEGV): C code touched memory that is not its own",
    signal.SIGABRT: "its own abort (SIGABRT): C++ code reached a state it could not continue from",
    signal.SIGBUS: "a bus error (SIGBUS): C code touched memory that is not there, often because /dev/shm is full "
    "(a container's is small; --shm-size=8g makes it larger)",
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
    dumped: tuple = ()  # Frames: where it was when asked, according to faulthandler
    described: tuple = ()  # the same, as told by itself, with what its variables held

    @property
    def has_failed(self):
        return self.report is not None or self.died is not None

    @property
    def has_quit(self):
        """Whether the student has left its debugger for good."""
        return self.report is not None and self.report.has_quit

    @property
    def has_lost_connection(self):
        """Whether all it can say is that another rank was gone."""
        return self.report is not None and self.report.consequence is Consequence.LOST_CONNECTION

    @property
    def blames_another(self):
        """Whether it failed because another rank was gone."""
        return self.report is not None and self.report.consequence is not None

    @property
    def frames(self):
        """Where it failed, or was when asked: Frames, outermost first; () where that is not known."""
        return self.report.frames if self.report is not None else self.described or self.dumped


class _Brief:
    def _render_traceback_(self):
        # IPython's hook. The frames of the notebook's own process only lead to launch() and help nobody.
        head, _, rest = str(self).partition("\n")
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {head}", *rest.split("\n")]

    def add(self, note):
        """Append `note`, which became known later, to the text; "" adds nothing."""
        if note:
            self.args = (f"{self}\n\n{note}",)


class LauncherError(_Brief, RuntimeError):
    """The launcher, or the system under it, could not do its work; this says nothing about the worker function."""

    run = None


class WorkerError(_Brief, RuntimeError):
    """A launch whose workers failed. Its text is for people; programs use its attributes.

    `rank` is the rank to look at first. `type_name` (of the module `type_module`) and `message` are its exception's,
    "" if it has none; `exitcode` is its process's exit code (minus the signal's number if a signal ended it; None if
    it was stopped by the launcher), `frames` where it failed or was, as (file name, line number, function), outermost
    first, each with `locals`, which says in words what variables of a student's function held, and `traceback` its
    traceback as text ("" if none).
    `timed_out` says whether the timeout ended them, `has_quit` whether the student left it at its debugger's prompt.
    `ranks` holds what is known of each rank asked, in order: `returned`, `report`, `died` and, as above, `frames`.
    `text` is the text without `advice`, which only the caller of `launch` can follow. `run` holds what the ranks had
    printed, logged and returned by then.
    """

    def __init__(self, text, cause=None, ranks=(), timed_out=False, advice=""):
        super().__init__(f"{text}\n\n{advice}" if advice else text)
        self.text, self.advice, self.ranks, self.timed_out, self.run = text, advice, tuple(ranks), timed_out, None
        cause = cause or Fate(None)
        report = cause.report
        self.rank, self.frames, self.has_quit = cause.rank, cause.frames, cause.has_quit
        self.type_module, self.type_name, self.message = (
            ("", "", "") if report is None else (report.type_module, report.type_name, report.message)
        )
        self.exitcode = cause.died if report is None else report.exitcode
        self.traceback = "" if report is None else cells.with_cell_names(report.traceback)

    def is_a(self, kind):
        """Whether the rank's exception is of the class `kind` itself, not only of one with its name."""
        return (self.type_module, self.type_name) == (kind.__module__, kind.__name__)


class RanksError(_Brief, RuntimeError):
    """Persistent ranks could not do what was asked: there are none, or not these."""


class Interrupted(_Brief, KeyboardInterrupt):
    """A launch that was interrupted, or quit at a debugger's prompt; its text says where the ranks were.

    `run` holds what they had printed, logged and returned by then, or is None if none had begun.
    """

    run = None

    def __init__(self, what, fates=()):
        super().__init__("\n\n".join(filter(None, [what, "\n".join(lines_about(fates, too=""))])))


@contextlib.contextmanager
def briefly_interrupted(what):
    """Tell an interrupt that strikes inside in one sentence, `what`; an error that was being told then comes first."""
    before = sys.exc_info()[1]  # which the caller may be dealing with
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt as error:
        told = error.__context__
        raise (told if isinstance(told, _Brief) and told is not before else Interrupted(what)) from None


def explain(fates, timeout=None, killed_for_memory=False, asked_by="launch"):
    """Return the WorkerError for `fates`; `timeout`, in seconds, is given if it ended them.

    `asked_by` is what the advice is about, "launch" or "Ranks".

    Return a LauncherError if the first to fail never reached the student's code.
    """
    if timeout is not None:
        return _explain_timeout(fates, timeout, asked_by)
    failed = sorted((fate for fate in fates if fate.has_failed), key=lambda fate: fate.time)
    cause = next((fate for fate in failed if not fate.blames_another), failed[0])
    if cause.report is not None and cause.report.is_ours and not cause.has_lost_connection:
        return LauncherError(f"rank {cause.rank}: {_raised(cause.report)}\n\n{cause.report.traceback}".rstrip())
    others = [fate for fate in fates if fate is not cause]
    if cause.has_lost_connection:
        return _explain_lost_connection(cause, others, fates, asked_by)
    advice, report = "", cause.report
    if report is not None:
        head = f"rank {cause.rank}: {_raised(report)}"
        if _NO_SHARED_MEMORY.search(report.message):
            advice = _MORE_SHARED_MEMORY
    else:
        head = f"rank {cause.rank}: {_died(cause.died, killed_for_memory)}"
        # gloo aborts in a thread of its own, so the rank that it ends need not have been in a collective itself.
        if cause.died == -signal.SIGABRT and any(is_in_torch_distributed(fate.frames) for fate in fates):
            head += "\n  gloo aborts when ranks disagree on shape, dtype or order, NCCL when a collective never ends"
            advice = _ADVICE.format(asked_by)
    if place := cells.own_line(cause.frames):
        head += f"\n  at {place}"
    parts = [head, "\n".join(lines_about(others))]
    parts.append(_trace_of(cause))
    return WorkerError("\n\n".join(part for part in parts if part), cause, fates, advice=advice)


def _explain_lost_connection(cause, others, fates, asked_by):
    returned = [fate.rank for fate in others if fate.returned]
    if returned:
        head = f"{names_of(returned)} had returned while rank {cause.rank} {whereabouts(cause.frames)}"
    else:
        head = f"rank {cause.rank}: {_raised(cause.report)}\n  when it {whereabouts(cause.frames)}"
    rule = _rule(fates)
    lines = lines_about([fate for fate in others if not fate.returned])
    parts = [head, "\n".join([rule, *lines]), _trace_of(cause), _raised(cause.report) if returned else ""]
    advice = _ADVICE.format(asked_by) if rule is _ALL_CALL_THE_SAME else ""
    return WorkerError("\n\n".join(part for part in parts if part), cause, fates, advice=advice)


def _rule(fates):
    """What ranks have to agree on that wait for one another as these do."""
    called = {frame[2] for fate in fates for frame in fate.frames if is_in_torch_distributed((frame,))}
    if "new_group" in called:
        return "Every rank must call new_group, also those that are not to be in the group."
    if called & {"send", "recv"}:
        return "Each recv needs a send from another rank, and each send a recv, with the same shape and dtype."
    return _ALL_CALL_THE_SAME


def _explain_timeout(fates, timeout, asked_by):
    running = [fate for fate in fates if not fate.returned and not fate.has_failed]
    apart = [fate for fate in running if not is_in_torch_distributed(fate.frames)]
    stopped = "all workers were" if asked_by == "launch" else "what was still running has been"
    head = f"no end after {timeout:g} s, so {stopped} stopped"
    lines = lines_about(fates)
    rule = _rule(fates) if running and not apart else ""
    if rule is _ALL_CALL_THE_SAME and len(lines) == 1:  # they do
        rule = ""
    return WorkerError(
        "\n\n".join(filter(None, [head, "\n".join(lines), rule])),
        cause=(apart or running or [fate for fate in fates if fate.frames] or fates)[0],
        ranks=fates,
        timed_out=True,
        advice=f"If they only needed longer: {asked_by}(…, timeout=seconds).",
    )


def how_it_failed(fate):
    """What a rank has raised, or how it died, in words."""
    return _raised(fate.report) if fate.report is not None else _died(fate.died)


def frames_of_dump(text):
    """Return the Frames in a stack written by faulthandler."""
    stack = _STACK_HEAD.split(text)[-1]
    found = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', stack.split("\n\n")[0], flags=re.MULTILINE)
    return tuple(Frame(name, int(line), function) for name, line, function in reversed(found))


def _raised(report):
    if report.exitcode is not None:
        said = "" if report.message in ("", "None", str(report.exitcode)) else f": {report.message}"
        return f"left with exit code {report.exitcode} (sys.exit{said}) before it returned"
    message = f"{report.type_name}: {report.message}" if report.message else report.type_name
    return f"{message}\n  while {report.while_doing}" if report.while_doing else message


def _died(code, killed_for_memory=False):
    if code >= 0:
        return f"ended with exit code {code} before the worker returned (os._exit, or exit() in C code)"
    if code == -signal.SIGKILL:
        if killed_for_memory:
            return "killed (SIGKILL) by the system, which had run out of memory: use a smaller model, batch or data set"
        return "killed (SIGKILL) by another process, or by the system for want of memory"
    number = -code
    return f"ended by {_SIGNALS.get(number, f'signal {number} ({signal.strsignal(number)})')}"


def lines_about(fates, too=" too"):
    """Return what became of the ranks: one line for all with the same story, in the order of the first.

    `too` is "" where no failure has been told before.
    """
    groups = {}
    for fate in fates:
        groups.setdefault(_story(fate, too), []).append(fate)
    return [
        f"{names_of([fate.rank for fate in group])} {_story(group[0], too, len(group) > 1)}"
        for group in groups.values()
    ]


def _story(fate, too, of_many=False):
    """What became of a rank, as the rest of a sentence about it, or about several."""
    report = fate.report
    if fate.returned and _passes_through(fate.frames, _END_OF_THREADS):
        return "had returned, but a thread is still running: join it, or make it a daemon thread"
    if fate.returned:
        return "had returned"
    if cells.innermost(fate.frames) is None and _passes_through(fate.frames, _END_OF_GPU_WORK):
        its = "their GPUs are still waiting" if of_many else "its GPU is still waiting"
        return f"had reached the end of the worker function, but {its} for a message from ranks that sent none"
    if _passes_through(fate.frames, _END_OF_ANSWER):
        return "had reached the end of your function"
    if fate.has_lost_connection:
        its, it = ("their", "they") if of_many else ("its", "it")
        return f"lost {its} connection when {it} {whereabouts(fate.frames, of_many)}"
    if report is not None:
        place = cells.own_line(fate.frames)
        return f"failed{too}: {in_one_line(_raised(report))}" + (f"\n  at {place}" if place else "")
    if fate.died is not None:
        was = "" if fate.died >= 0 else "were " if of_many else "was "
        return was + _died(fate.died)
    return whereabouts(fate.frames, of_many)


def in_one_line(text, length=120):
    line = text.partition("\n")[0]
    return line if len(line) <= length else f"{line[:length]}…"


def names_of(ranks):
    """`rank 3`, `ranks 0 and 2`, `ranks 1–3`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}–{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def whereabouts(frames, of_many=False):
    """Where a rank is, from its Frames: `was in all_reduce at Cell In[3], line 6: dist.all_reduce(x)`."""
    was = "were" if of_many else "was"
    own = cells.innermost(frames)
    if _passes_through(frames, _END_OF_ANSWER):
        return "had reached the end of your function"
    if own is None and not frames:
        return f"{was} running ({'they' if of_many else 'it'} did not say where)"
    if own is None:
        return f"{was} running" if frames[-1][0].startswith(_LAUNCHER) else f"{was} in {frames[-1][2]}"
    if any(name == bdb.__file__ for name, _, _ in frames):
        return f"{was} at a debugger's prompt at {cells.own_line(frames)}"
    called = [frame.function for frame in frames[own + 1 :] if not _passes_through((frame,), _LOG_OF_CALLS)]
    return f"{was} {f'in {called[0]} ' if called else ''}at {cells.own_line(frames)}"


def _passes_through(frames, place):
    file, function = place
    return any(name.endswith(file) and called == function for name, _, called in frames)


def is_in_torch_distributed(frames):
    """Whether a rank at these frames waits for others: torch calls a student's own forward() from there, too."""
    own = cells.innermost(frames)
    below = frames if own is None else frames[own + 1 :]
    return any("/torch/distributed/" in name for name, _, _ in below)


def _trace_of(fate):
    """The traceback of a rank that has raised, without its last line, which the heading says; "" if there is none."""
    report = fate.report
    if report is None or not report.frames:
        return ""
    text = cells.with_cell_names(report.traceback).rstrip()
    last = f"{report.type_name}: {report.message}".rstrip() if report.message else report.type_name
    for shown in (f"{report.type_module}.{last}", last):
        text = text.removesuffix(shown).rstrip()
    lines = text.removeprefix("Traceback (most recent call last):\n")
    return f"Traceback of rank {fate.rank} (most recent call last):\n{lines}"
