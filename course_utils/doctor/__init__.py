"""Checks whether this machine is ready for a class, and says what to do if not: python -m course_utils.doctor.

installed   Python, packages, data
machine     memory, shared memory, limits, disk, loopback, host names, open servers
gpus        driver, GPUs, the links between them
cluster     Slurm
workers     a launch with gloo, CUDA, NCCL between every pair of GPUs, and the addresses that workers listen on
"""

import threading
from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"
LIMIT_S = 10  # per check: a disk, driver or name server may not answer
LOAD_S = 90  # for importing torch from a slow network disk


@dataclass(frozen=True)
class Line:
    """The result of one check; `cure` says what to do, or is ""."""

    check: str
    status: str
    said: str
    cure: str = ""


def examine():
    """Yield the Lines of all checks; a check that raises or takes too long gives a line, too."""
    from . import cluster, gpus, installed, machine, workers

    problems = []
    _attempt(problems, _warm)  # the forkserver imports torch while the checks run
    for check in installed.CHECKS:
        yield from _within(LIMIT_S, check)
    # Not during a check: loading torch's libraries holds the GIL, and a slow disk would use up the check's time.
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
    for check in workers.CHECKS:  # in the main thread, without a limit: launch has its own
        yield from _lines(check, lines)


def in_time(limit_s, call):
    """Return [what `call()` returns], or [] if it takes more than `limit_s` seconds; its thread then runs on."""
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
    except Exception as error:  # a broken machine may cause any error
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
    """Return the first line of an error's message, with its type unless a launch raised it."""
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return (
        text
        if type(error).__name__ in ("WorkerError", "LauncherError") and text
        else f"{type(error).__name__}: {text}".rstrip(": ")
    )


def _attempt(problems, call):
    """Call `call`, and add the message of what it raises to `problems`."""
    try:
        call()
    except Exception as error:
        problems.append(first_line(error))


def _warm():
    from ..launch import warm

    warm()


def _import_torch():
    import torch.distributed  # noqa: F401
