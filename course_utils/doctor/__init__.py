"""Whether this machine is ready for a class, line by line, each with what to do where it is not: python -m
course_utils.doctor

installed   Python, packages, data
machine     what the system grants: shared memory, limits, disk, loopback, names
gpus        driver, GPUs, the links between them
cluster     Slurm
workers     what a launch does here: gloo, CUDA, NCCL between every pair of GPUs, who can listen in
"""

import threading
from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"
LIMIT_S = 10  # for a check that waits for a disk, a driver or a name server that does not answer
LOAD_S = 90  # for torch to be read from a slow network disk


@dataclass(frozen=True)
class Line:
    """What came of one check. `cure` says what to do, where there is something to do."""

    check: str
    status: str
    said: str
    cure: str = ""


def examine():
    """Yield the Lines of all checks. A check that raises, or that takes too long, is a line, too."""
    from . import cluster, gpus, installed, machine, workers

    problems = []
    _attempt(problems, _warm)  # the process that workers are forked from imports torch while this one looks around
    for check in installed.CHECKS:
        yield from _within(LIMIT_S, check)
    # Now, and beside no check: as its libraries are loaded the interpreter is held, and from a slow disk that would use
    # up the time of a check.
    if not in_time(LOAD_S, lambda: _attempt(problems, _import_torch)):
        problems.append(f"no end within {LOAD_S} s")
    if problems:
        yield Line(
            "torch",
            FAIL,
            f"does not load ({problems[0]})",
            "run `make clean` and `make install`; on a network disk, look whether it answers",
        )
    else:
        yield from _within(LIMIT_S, installed.data)  # which imports torch
    lines = []
    for check in (*machine.CHECKS, *gpus.CHECKS, *cluster.CHECKS):
        for line in _within(LIMIT_S, check):
            lines.append(line)
            yield line
    if problems:
        return
    for check in workers.CHECKS:  # in this thread, from which workers are started; launch has a limit of its own
        yield from _lines(check, lines)


def in_time(limit_s, call):
    """What `call()` returns, in a list; an empty one where it has not after so many seconds: it is left alone."""
    returned = []
    thread = threading.Thread(target=lambda: returned.append(call()), daemon=True)
    thread.start()
    thread.join(limit_s)
    return returned


def _within(limit_s, check):
    found = in_time(limit_s, lambda: _lines(check))
    if not found:
        return [
            Line(
                _name(check),
                FAIL,
                f"no answer within {limit_s} s",
                "look which disk, driver or name server does not answer; restart the machine",
            )
        ]
    return found[0]


def _lines(check, *arguments):
    try:
        return list(check(*arguments))
    except Exception as error:  # a broken machine breaks things in ways that nobody thought of
        return [
            Line(
                _name(check),
                FAIL,
                f"this check itself failed ({first_line(error)})",
                "fix what it names; if that is unclear, report this line to the course",
            )
        ]


def _name(check):
    return check.__name__.replace("_", " ")


def first_line(error):
    """The first line of an error's message, with its type where that says more."""
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return (
        text
        if type(error).__name__ in ("WorkerError", "LauncherError") and text
        else f"{type(error).__name__}: {text}".rstrip(": ")
    )


def _attempt(problems, call):
    """Call it, and add what it raises to the problems."""
    try:
        call()
    except Exception as error:
        problems.append(first_line(error))


def _warm():
    from ..launch import warm

    warm()


def _import_torch():
    import torch.distributed  # noqa: F401
