"""Whether this machine is ready for a class, line by line, each with what to do where it is not: python -m course_utils.doctor

    machine     what the system grants: shared memory, limits, disk, loopback, names
    installed   Python, packages, data
    gpus        driver, GPUs, the links between them
    cluster     Slurm
    workers     what a launch does here: gloo, NCCL between every pair of GPUs, who can listen in
"""

import contextlib
import threading
from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Line:
    """What came of one check. `cure` says what to do, where there is something to do."""

    check: str
    status: str
    said: str
    cure: str = ""


def examine():
    """Yield the Lines of all checks. A check that raises is a line, too."""
    from . import cluster, gpus, installed, machine, workers

    # Importing torch takes most of the time: it happens beside the other checks.
    warming = threading.Thread(target=_warm, daemon=True)
    warming.start()
    lines = []
    for check in (*installed.CHECKS, *machine.CHECKS, *gpus.CHECKS, *cluster.CHECKS):
        for line in _run(check):
            lines.append(line)
            yield line
    warming.join()
    yield from _run(installed.data)  # which imports torch
    for check in workers.CHECKS:
        yield from _run(check, lines)


def _run(check, *arguments):
    try:
        yield from check(*arguments)
    except Exception as error:  # a broken machine breaks things in ways that nobody thought of
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        yield Line(check.__name__.replace("_", " "), FAIL, f"could not be looked at ({said})",
                   "mend what it names; where that is unclear, report this line to the course")  # fmt: skip


def _warm():
    """Start the process that workers are forked from, and import torch here, at the same time."""
    with contextlib.suppress(Exception):  # what is wrong is found again, where it is a line
        from ..launch import warm

        warm()
        import torch.distributed  # noqa: F401
