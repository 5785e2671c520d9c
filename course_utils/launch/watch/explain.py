"""Turn what is known about each rank into one error that a student can act on.

The cause is the rank that failed first. An error that only says that another rank has ended is the cause only if there
is no other error.
"""

import bdb
import re
import signal
import traceback
from collections.abc import Iterable, Sequence

from ... import cells
from ..forkserver.protocol import Frame, Phase
from . import agreement
from .common import Quiet
from .errors import Interrupted, LauncherError, WorkerError
from .outcome import Outcome, is_in_torch_distributed, names_of

_LOG_OF_CALLS = "/torch/distributed/c10d_logger.py"  # a wrapper around each collective
_ALL_CALL_THE_SAME = (
    "Every rank must call the same collectives, in the same order, equally often, and with the same shape and dtype."
)
_WHY_ABORT = "gloo aborts when ranks disagree on shape, dtype or order, NCCL when a collective never ends"
_NO_SHARED_MEMORY = re.compile("shared memory.*(No space left|shared memory limit)|out of shared memory", re.DOTALL)
_MORE_SHARED_MEMORY = (
    "/dev/shm is full, through which a DataLoader's processes hand over batches: start the container with "
    "--shm-size=8g, or the DataLoader with num_workers=0."
)
_SIGNALS = {
    signal.SIGSEGV: "a segmentation fault (SIGSEGV): C code touched memory that is not its own",
    signal.SIGABRT: "its own abort (SIGABRT): C++ code reached a state it could not continue from",
    signal.SIGBUS: "a bus error (SIGBUS): C code touched memory that is not there, often because /dev/shm is full "
    "(a container's is small; --shm-size=8g makes it larger)",
    signal.SIGFPE: "an arithmetic fault (SIGFPE) in C code",
    signal.SIGILL: "an illegal instruction (SIGILL): a library was built for another processor",
    signal.SIGTERM: "a request to end (SIGTERM) from another process",
}


def explain(
    outcomes: Sequence[Outcome], timeout: float | None = None, killed_for_memory: bool = False,
    asked_by: str = "launch", held_up_s: float = 0.0,
) -> WorkerError | LauncherError:  # fmt: skip
    """Return the WorkerError for `outcomes`; `timeout`, in seconds, is given if it ended the ranks.

    `held_up_s` is what it did not count: for how long the ranks waited for cores that other programs used.
    `asked_by`, "launch" or "Ranks", is named in the advice. If the first rank to fail never reached the student's code,
    return a LauncherError.
    """
    if timeout is not None:
        return _explain_timeout(outcomes, timeout, asked_by, held_up_s)
    failed = sorted((outcome for outcome in outcomes if outcome.has_failed), key=lambda outcome: outcome.time)
    cause = next((outcome for outcome in failed if not outcome.blames_another), failed[0])
    if cause.report is not None and cause.report.is_ours and not cause.has_lost_connection:
        return LauncherError(f"rank {cause.rank}: {_raised(cause.report)}\n\n{cause.report.traceback}".rstrip())
    others = [outcome for outcome in outcomes if outcome is not cause]
    if cause.has_lost_connection:
        return _explain_lost_connection(cause, others, outcomes, asked_by)
    advice, report, found = "", cause.report, agreement.findings(outcomes)
    was_refused = cause.calls is not None and cause.calls.was_refused
    disagreed, first = was_refused or cause.died == -signal.SIGABRT, ""
    if report is not None:
        head = f"rank {cause.rank}: {_raised(report)}"
        if _NO_SHARED_MEMORY.search(report.message):
            advice = _MORE_SHARED_MEMORY
        elif report.type_name == "EOFError" and report.message == "EOF when reading a line":
            advice = (
                "A worker has no keyboard: ask in the notebook, and give the function what was typed as an argument."
            )
    else:
        head = f"rank {cause.rank}: {_died(cause.died, killed_for_memory)}"
        # gloo aborts in a thread of its own, so this rank's main thread may have been outside any collective.
        if cause.died == -signal.SIGABRT and any(is_in_torch_distributed(outcome.frames) for outcome in outcomes):
            head += "" if found else f"\n  {_WHY_ABORT}"
            advice = _advice(found, asked_by)
    if place := cells.own_line(cause.frames):
        head += f"\n  at {place}"
    # That others wait in what a failed rank did not call is no disagreement, and the lines above say so.
    told = [each for each in found if not (isinstance(each, agreement.Behind) and each.ranks == (cause.rank,))]
    if disagreed and told and isinstance(told[0], agreement.Differ):
        first, told = told[0].sentence(), told[1:]  # the rank that gave up may be an innocent one
    more = _disagreement(told, outcomes, report is None and not first)
    parts = [first, head, "\n".join(lines_about(others)), more, _trace_of(cause)]
    return WorkerError(_joined(parts), cause, outcomes, advice=advice, findings=found)


def _explain_lost_connection(cause, others, outcomes, asked_by):
    returned = [outcome for outcome in others if outcome.returned]
    found = agreement.findings(outcomes)
    is_known = bool(returned or found)  # then what torch guesses, and where in its own code it noticed, only distract
    if returned:
        head = f"{_ended(returned)} while rank {cause.rank} {_at(cause)}"
    elif found:
        head = f"rank {cause.rank} {_story(cause, too='')}"
    else:
        head = f"rank {cause.rank}: {_raised(cause.report)}\n  when it {_at(cause)}"
    rule = _rule(outcomes)
    lines = lines_about([outcome for outcome in others if not outcome.returned])
    parts = [head, "\n".join([rule, *lines]), _disagreement(found, outcomes)]
    parts += [_trace_of(cause, to_own_line=is_known), _first_sentence(_raised(cause.report)) if is_known else ""]
    advice = _advice(found, asked_by) if rule is _ALL_CALL_THE_SAME else ""
    return WorkerError(_joined(parts), cause, outcomes, advice=advice, findings=found)


def _first_sentence(text):
    line = text.partition("\n")[0].partition(". ")[0]
    return line if line == text else f"{line} …"


def _ended(returned):
    """Return how ranks that did not fail have ended, as in `rank 1 had returned and rank 2 had left by sys.exit()`."""
    ranks = {}
    for outcome in returned:
        ranks.setdefault(_how_it_ended(outcome), []).append(outcome.rank)
    return " and ".join(f"{names_of(each)} {how}" for how, each in ranks.items())


def _how_it_ended(outcome):
    if outcome.left is None:
        return "had returned"
    place = cells.own_line(outcome.left)
    return f"had left by sys.exit(){f' at {place}' if place else ''}"


def _advice(found, asked_by):
    """Return how to learn which ranks disagree, "" if that is known."""
    if found:
        return ""
    return f"{asked_by}(…, debug=True) says which ranks disagree, but with DDP on the CPU it makes torch 2.15 crash."


def about_debug(error: Exception) -> str:
    """Return a possible cause of an error of a launch with `debug=True`, "" if debug is none."""
    if isinstance(error, WorkerError) and error.exitcode == -signal.SIGSEGV:
        return "debug=True was on, with which DDP on the CPU makes torch 2.15 crash in this way: try without."
    return ""


def _disagreement(found, outcomes, else_last_calls=True):
    """Return what ranks disagree on, in a few sentences; else what each has called last."""
    told = agreement.sentences(found)
    return " ".join(told or (agreement.last_calls(outcomes) if else_last_calls else ()))


def _joined(parts):
    return "\n\n".join(filter(None, parts))


def _rule(outcomes):
    """Return the rule of torch.distributed that these ranks may have broken, as a sentence."""
    called = {frame[2] for outcome in outcomes for frame in outcome.frames if is_in_torch_distributed((frame,))}
    if "new_group" in called:
        return "Every rank must call new_group, also those that are not to be in the group."
    if called & {"send", "recv"}:
        return "Each recv needs a send from another rank, and each send a recv, with the same shape and dtype."
    return _ALL_CALL_THE_SAME


def _explain_timeout(outcomes, timeout, asked_by, held_up_s):
    running = [outcome for outcome in outcomes if not outcome.returned and not outcome.has_failed]
    apart = [outcome for outcome in running if not is_in_torch_distributed(outcome.frames)]
    stopped = "all workers were" if asked_by == "launch" else "what was still running has been"
    why = "no rank has logged or printed anything for" if isinstance(timeout, Quiet) else "no end after"
    held_up = f"{held_up_s:.0f}" if held_up_s >= 10 else f"{held_up_s:.1f}"
    but = f", not counting {held_up} s in which other programs used the cores" if held_up_s > 0.1 * timeout else ""
    head = f"{why} {timeout:g} s{but}, so {stopped} stopped"
    lines = lines_about(outcomes)
    rule = _rule(outcomes) if running and not apart else ""
    if rule is _ALL_CALL_THE_SAME and len(lines) == 1:  # all are at the same line: not broken
        rule = ""
    found = agreement.findings(outcomes)
    return WorkerError(
        _joined([head, "\n".join(lines), _disagreement(found, outcomes), rule]),
        cause=(apart or running or [outcome for outcome in outcomes if outcome.frames] or outcomes)[0],
        ranks=outcomes,
        timed_out=True,
        advice=f"If they only needed longer: {asked_by}(…, timeout=seconds).",
        findings=found,
    )


def how_it_failed(outcome: Outcome) -> str:
    """Describe what a rank has raised, or how it died."""
    return _raised(outcome.report) if outcome.report is not None else _died(outcome.died)


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


def lines_about(outcomes: Iterable[Outcome], too: str = " too") -> list[str]:
    """Return lines that say what became of the ranks; ranks with the same outcome share a line.

    `too` is "" if no failure has been reported before.
    """
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(_story(outcome, too), []).append(outcome)
    return [
        f"{names_of([outcome.rank for outcome in group])} {_story(group[0], too, len(group) > 1)}"
        for group in groups.values()
    ]


def _story(outcome, too, of_many=False):
    """Return what became of a rank, as the rest of a sentence whose subject is one rank or, `of_many`, several."""
    report = outcome.report
    if outcome.phase is Phase.WAITS_FOR_THREADS:
        return "had returned, but a thread is still running: join it, or make it a daemon thread"
    if outcome.returned:
        return _how_it_ended(outcome)
    if outcome.phase is Phase.WAITS_FOR_GPU:
        its = "their GPUs are still waiting" if of_many else "its GPU is still waiting"
        return f"had reached the end of the worker function, but {its} for a message from ranks that sent none"
    if outcome.phase is Phase.ANSWERED:
        return "had reached the end of your function"
    if outcome.has_lost_connection:
        its, it = ("their", "they") if of_many else ("its", "it")
        return f"lost {its} connection when {it} {_at(outcome, of_many)}"
    if report is not None:
        place = cells.own_line(outcome.frames)
        return f"failed{too}: {in_one_line(_raised(report))}" + (f"\n  at {place}" if place else "")
    if outcome.died is not None:
        was, place = "" if outcome.died >= 0 else "were " if of_many else "was ", cells.own_line(outcome.frames)
        return was + _died(outcome.died) + (f"\n  at {place}" if place else "")
    return _at(outcome, of_many)


def in_one_line(text: str, length: int = 120) -> str:
    line = text.partition("\n")[0]
    return line if len(line) <= length else f"{line[:length]}…"


def _at(outcome, of_many=False):
    """Return where a rank was, as the rest of a sentence whose subject is one rank or, `of_many`, several."""
    was, they = ("were", "they") if of_many else ("was", "it")
    if outcome.phase is Phase.ANSWERED:
        return "had reached the end of your function"
    if not outcome.frames:
        return f"{was} running ({they} did not say where)"
    return f"{was} {place_of(outcome.frames)}"


def place_of(frames: Sequence[Frame]) -> str:
    """Describe where a rank is: `in all_reduce at Cell In[3], line 6: dist.all_reduce(x)`, or `running`."""
    own = cells.innermost(frames)
    if own is None:
        return "running" if not frames or frames[-1].file.startswith(cells.LAUNCHER) else f"in {frames[-1].function}"
    if any(frame.file == bdb.__file__ for frame in frames):
        return f"at a debugger's prompt at {cells.own_line(frames)}"
    called = [frame.function for frame in frames[own + 1 :] if not frame.file.endswith(_LOG_OF_CALLS)]
    return f"{f'in {called[0]} ' if called else ''}at {cells.own_line(frames)}"


def _trace_of(outcome, to_own_line=False):
    """Return a rank's traceback without its last line, which the caller says elsewhere; "" if there is none.

    `to_own_line`: without the frames below the student's innermost line.
    """
    report = outcome.report
    if report is None or not report.frames:
        return ""
    own = cells.innermost(report.frames)
    if to_own_line and own is not None:
        frames = [(frame.file, frame.line, frame.function, None) for frame in report.frames[: own + 1]]
        lines = cells.with_cell_names("".join(traceback.format_list(frames))).rstrip()
    else:
        text = cells.with_cell_names(report.traceback).rstrip()
        last = f"{report.type_name}: {report.message}".rstrip() if report.message else report.type_name
        for shown in (f"{report.type_module}.{last}", last):
            text = text.removesuffix(shown).rstrip()
        lines = text.removeprefix("Traceback (most recent call last):\n")
    return f"Traceback of rank {outcome.rank} (most recent call last):\n{lines}"


def interrupted(what: str, outcomes: Sequence[Outcome]) -> Interrupted:
    """Return an Interrupted that says `what` was interrupted, and where the ranks of these outcomes were."""
    found = agreement.findings(outcomes)
    lines = "\n".join(lines_about(outcomes, too=""))
    return Interrupted(_joined([what, lines, _disagreement(found, outcomes)]), outcomes, found)
