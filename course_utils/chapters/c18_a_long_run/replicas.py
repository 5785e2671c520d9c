"""Starts replicas of a program that train together, kills some of them, and adds others."""

import os
import tempfile
import time
from typing import NamedTuple

import torch

from ...parallel.membership import Coordinator
from ...processes import interrupts
from ...processes.starter import Starter
from . import timeline


class Run(NamedTuple):
    """What came of a training: its `timeline`, the `weights` that replicas saved, by number, all `lines` printed."""

    timeline: timeline.Timeline
    weights: dict[int, dict[str, torch.Tensor]]
    lines: list[str]


def run_replicas(program, num_replicas=4, kills=None, joins=None, timeout=60):
    """Run `program ADDRESS NUMBER FILE` in a process for each replica, and return a Run when all have ended.

    `kills={2: 20}` kills replica 2 once step 19 counts, which is in the middle of step 20. `joins={4: 30}` starts
    replica 4 once step 29 counts. No process is left behind, also if this is interrupted.

    Raises RuntimeError if a replica fails, and TimeoutError after `timeout` seconds, with what was printed last; and
    ValueError if `kills` names a replica that is not started.
    """
    kills, joins, killed_s = dict(kills or {}), dict(joins or {}), {}
    if unknown := kills.keys() - {*range(num_replicas), *joins}:
        raise ValueError(f"kills names replicas {sorted(unknown)}, which are neither the first {num_replicas} nor join")
    with (
        interrupts.deferred(),
        tempfile.TemporaryDirectory() as folder,
        Coordinator(num_replicas) as coordinator,
        Starter(program) as starter,
    ):

        def start(number):
            starter.start(number, coordinator.address, str(number), f"{folder}/{number}.pt")

        for number in range(num_replicas):
            start(number)
        deadline = time.monotonic() + timeout
        while starter.running or timeline.num_connected(coordinator.events):
            for number, code in starter.wait(0.005):
                if code and number not in killed_s:
                    raise RuntimeError(f"replica {number} ended with exit code {code}:\n{starter.last_lines()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"replicas {starter.running} still run after {timeout} s:\n{starter.last_lines()}")
            step = timeline.current_step(coordinator.events)
            for number in [number for number, when in joins.items() if when <= step]:
                del joins[number]
                start(number)
            for number in [number for number, when in kills.items() if when <= step]:
                del kills[number]
                killed_s[number] = time.time()
                starter.kill(number)
        weights = {
            int(name.partition(".")[0]): torch.load(f"{folder}/{name}", map_location="cpu")
            for name in sorted(os.listdir(folder))
        }
        return Run(timeline.read(coordinator.events, killed_s), weights, starter.lines())
