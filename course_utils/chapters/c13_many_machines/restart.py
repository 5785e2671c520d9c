"""The phases of a restart under torchrun, read from what its agents and the program print."""

import threading
import time
from pathlib import Path

import psutil

PROGRAM = Path(__file__).with_name("phases.py")  # runs another, and prints when Python and torch are there
# Each ends when the last of the processes has printed its line; noticing, when the first has.
_ENDS = {
    "noticing": "Worker group FAILED",
    "meeting": "Rendezvous complete for workers",
    "starting Python": "phase: Python has started",
    "importing torch": "phase: torch is imported",
}


def watch(agents, kill_at):
    """Read what torchrun's `agents` print until they end, and kill a worker of the last one at step `kill_at`.

    The agents are Popen objects with text pipes, started with LOGLEVEL=INFO; their program prints `step N`. Returns
    ([(seconds since the kill, step)], {phase: seconds since the kill, at its end}).

    Raises RuntimeError, with an agent's last line, if one of them fails.
    """
    lines, killed = [], []

    def read(pipe):
        for line in pipe:
            lines.append((time.perf_counter(), line.strip()))
            if line == f"step {kill_at}\n" and not killed:
                killed.append(time.perf_counter())
                psutil.Process(agents[-1].pid).children()[-1].kill()

    readers = [threading.Thread(target=read, args=(pipe,)) for agent in agents for pipe in (agent.stdout, agent.stderr)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    if any(agent.wait() for agent in agents) or not killed:
        raise RuntimeError(f"torchrun gave up: {lines[-1][1] if lines else 'it printed nothing'}")
    since_kill = sorted((when - killed[0], line) for when, line in lines)
    steps = [(when, int(line.split()[1])) for when, line in since_kill if line.startswith("step ")]
    return steps, _phases(since_kill, steps)


def _phases(since_kill, steps):
    phases = {}
    for phase, said in _ENDS.items():
        times = [when for when, line in since_kill if when > 0 and said in line]
        phases[phase] = min(times) if phase == "noticing" else max(times)
    phases["going on"] = min(when for when, _ in steps if when > phases["importing torch"])
    return phases
