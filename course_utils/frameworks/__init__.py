"""Chapter 15's way to other frameworks: run a function in their interpreter, or show what was recorded where they are
not.

`run` is `launch` with `on=Environment(…)`, and remembers what it found; `keep` hands it to `make record`.
"""

import os
import signal

from .. import recorded
from ..launch import WorkerError, launch
from .environment import FRAMEWORKS, Environment, folder, problem, stamp
from .meeting import free_ports, horovodrun, meet_for_horovod, two_devices

__all__ = [
    "FRAMEWORKS",
    "Environment",
    "distance",
    "ends_at",
    "folder",
    "free_ports",
    "horovodrun",
    "keep",
    "meet_for_horovod",
    "problem",
    "run",
    "source",
    "stamp",
    "two_devices",
]

_RECORD = "frameworks"
# TensorFlow's coordinator of parameter servers, for one, has been seen to crash in its own C++ threads, in one run of
# sixty.
_CRASHES = (-signal.SIGSEGV, -signal.SIGABRT)

_found, _failures, _from_record = {}, {}, set()


def run(name, framework, summary, worker, *args, world_size=1, timeout=120):
    """Return `summary(results)` of `launch(worker, *args)` in the interpreter of `framework`, one of FRAMEWORKS.

    `results` has one value per rank; the summary is made of numbers, text, lists and dicts. Where nothing is installed
    it is what was recorded as `name`, a failure as well, and a line says so. What crashes in C code is started once
    more. Raises RuntimeError where the environment is there and does not serve, and whatever `launch` raises.
    """
    if not folder().exists():
        record = recorded.latest(_RECORD)
        with_version = f"{FRAMEWORKS[framework]} {record.values['versions'][framework]}"
        print(
            f"(recorded on {record.machine}, with {with_version})"
            if _from_record
            else f"{problem(framework)} Until then: recorded on {record.machine}, with {with_version}."
        )
        _from_record.add(name)
        if name in record.values["failures"]:
            raise WorkerError(record.values["failures"][name])
        return record.values["found"][name]
    options = {"world_size": world_size, "timeout": timeout, "on": Environment(framework)}
    try:
        try:
            run = launch(worker, *args, **options)
        except WorkerError as error:
            if error.exitcode not in _CRASHES:
                raise
            print(f"{FRAMEWORKS[framework]} crashed ({error.text.splitlines()[0]}): starting it once more.")
            run = launch(worker, *args, **options)
    except WorkerError as error:
        _failures[name] = str(error)
        raise
    _found[name] = summary(run.results)
    return _found[name]


def source():
    """For a figure's caption: where what `run` returned was recorded, "" if all of it ran here."""
    return f"recorded on {recorded.latest(_RECORD).machine}" if _from_record else ""


def ends_at(truth):
    """A summary for `run`: the results' losses and how far they are from `truth`, a list of arrays.

    A result is {"losses": […], "replicas": [parameters of each copy that this process has, …]}; what else it holds is
    kept of the first. A process that has none, a server, returns None. The summary raises AssertionError unless every
    copy is at `truth`, as close as `torch.testing.assert_close` wants float32 to be.
    """

    def summary(results):
        import torch

        given = [result for result in results if result is not None]
        copies = [copy for result in given for copy in result["replicas"]]
        for copy in copies:
            torch.testing.assert_close(copy, truth)
        rest = {name: value for name, value in given[0].items() if name != "replicas"}
        return rest | {"apart": distance(copies, truth), "copies": len(copies), "processes": len(results)}

    return summary


def distance(copies, truth):
    """The largest difference between a number in any of `copies`, lists of arrays, and the one in `truth`."""
    return max(float(abs(mine - right).max()) for copy in copies for mine, right in zip(copy, truth))


def keep():
    """Keep what `run` found, for `make record`. Raises RuntimeError where a part of it was not found here."""
    if os.environ.get("COURSE_RECORD") and _from_record:
        raise RuntimeError(
            f"{', '.join(sorted(_from_record))} did not run here, so there is nothing to record: `make elsewhere` first"
        )
    if not _from_record:
        recorded.keep(_RECORD, {"found": _found, "failures": _failures, "versions": stamp()["frameworks"]})
