"""Chapter 15's other frameworks: run a function with one of them, or show what was recorded.

`run` calls `launch` with `on=Environment(…)` and stores the result; `keep` stores the results for `make record`.
"""

import os
import signal

from .. import recorded
from ..launch import WorkerError, launch
from .environment import FRAMEWORKS, Environment, folder, home, problem, stamp
from .meeting import free_ports, horovodrun, hush, meet_for_horovod, two_devices

__all__ = [
    "FRAMEWORKS",
    "Environment",
    "distance",
    "ends_at",
    "folder",
    "free_ports",
    "horovodrun",
    "hush",
    "keep",
    "meet_for_horovod",
    "placement",
    "problem",
    "run",
    "source",
    "stamp",
    "two_devices",
]

_RECORD = "frameworks"
# TensorFlow's parameter-server coordinator crashed in its own C++ threads in one of sixty runs.
_CRASHES = (-signal.SIGSEGV, -signal.SIGABRT)

_found, _failures, _placements, _from_record = {}, {}, {}, set()


def run(name, framework, summary, worker, *args, world_size=1, timeout=120):
    """Return `summary(results)` of `launch(worker, *args)` with `framework`, one of FRAMEWORKS.

    `results` has one value per rank; the summary consists of numbers, text, lists and dicts. If nothing is installed,
    this prints a line and returns what was recorded as `name`, or raises the recorded failure. After a crash in C code,
    the launch is repeated once. Raises RuntimeError if the environment exists but is unusable, and whatever `launch`
    raises.
    """
    if not folder(home(framework)).exists():
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
    _found[name], _placements[name] = summary(run.results), run.placement
    return _found[name]


def source():
    """Return the origin of `run`'s results for a figure's caption, or "" if all of it ran here."""
    return f"recorded on {recorded.latest(_RECORD).machine}" if _from_record else ""


def placement(name):
    """Return the placement of the launch that `run` made for `name`, for a figure's caption; None if recorded."""
    return _placements.get(name)


def ends_at(truth):
    """Return a summary for `run`: the results' losses and their distance from `truth`, a list of arrays.

    A result is {"losses": […], "replicas": [parameters of each copy that this process has, …]}; other entries are kept
    from the first result. A process without copies, a server, returns None. The summary raises AssertionError unless
    every copy is close to `truth`, by `torch.testing.assert_close` for float32.
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
    """Return the largest absolute difference between `copies`, lists of arrays, and `truth`, a list of arrays."""
    return max(float(abs(mine - right).max()) for copy in copies for mine, right in zip(copy, truth))


def keep():
    """Keep the results of `run` for `make record`. Raises RuntimeError if some of them did not run here."""
    if os.environ.get("COURSE_RECORD") and _from_record:
        raise RuntimeError(
            f"{', '.join(sorted(_from_record))} did not run here, so there is nothing to record: `make elsewhere` first"
        )
    if not _from_record:
        versions = stamp()["frameworks"] | stamp("trainers")["frameworks"]
        recorded.keep(_RECORD, {"found": _found, "failures": _failures, "versions": versions})
