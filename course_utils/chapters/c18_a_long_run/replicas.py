"""Starts replicas of a program that train together, has some of them die, and adds others."""

import json
import os
import signal
import tempfile
import time
from typing import NamedTuple

import torch

from ...parallel.membership import Coordinator
from ...processes import interrupts
from ...processes.starter import Starter
from . import dying, timeline


class Run(NamedTuple):
    """What came of a training.

    Its `timeline`, the `weights` that replicas saved, by number, all `lines` printed, and the coordinator's `events`.
    """

    timeline: timeline.Timeline
    weights: dict[int, dict[str, torch.Tensor]]
    lines: list[str]
    events: list[dict]


def run_replicas(program, num_replicas=4, kills=None, joins=None, timeout=60):
    """Run `program ADDRESS NUMBER FILE` in a process for each replica, and return a Run when all have ended.

    `kills={2: 20}` has replica 2 die in step 20, inside the last of its sums. `joins={4: 30}` starts replica 4 once
    step 29 counts. No process is left behind, also if this is interrupted.

    Raises RuntimeError if a replica fails, and TimeoutError after `timeout` seconds, with what was printed last; and
    ValueError if `kills` names a replica that is not started.
    """
    kills, joins = dict(kills or {}), dict(joins or {})
    if unknown := kills.keys() - {*range(num_replicas), *joins}:
        raise ValueError(f"kills names replicas {sorted(unknown)}, which are neither the first {num_replicas} nor join")
    with (
        interrupts.deferred(),
        tempfile.TemporaryDirectory() as folder,
        Coordinator(num_replicas) as coordinator,
        Starter(dying.__file__) as starter,
    ):

        def start(number):
            arguments = coordinator.address, str(number), f"{folder}/{number}.pt"
            starter.start(number, str(program), json.dumps(kills), *arguments)

        for number in range(num_replicas):
            start(number)
        deadline = time.monotonic() + timeout
        while starter.running or timeline.num_connected(coordinator.events):
            for number, code in starter.wait(0.005):
                if code and not (code == -signal.SIGKILL and number in kills):
                    raise RuntimeError(f"replica {number} ended with exit code {code}:\n{starter.last_lines()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"replicas {starter.running} still run after {timeout} s:\n{starter.last_lines()}")
            step = timeline.current_step(coordinator.events)
            for number in [number for number, when in joins.items() if when <= step]:
                del joins[number]
                start(number)
        weights = {
            int(name.partition(".")[0]): torch.load(f"{folder}/{name}", map_location="cpu")
            for name in sorted(os.listdir(folder))
        }
        lines = starter.lines()
        deaths = [json.loads(line) for line in lines if line.startswith('{"killed"')]
        killed_s = {each["killed"]: each["time_s"] for each in deaths}
        return Run(timeline.read(coordinator.events, killed_s), weights, lines, list(coordinator.events))
