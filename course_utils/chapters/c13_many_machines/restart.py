"""What happens under torchrun when processes are killed, read from what its agents and the program print."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen

import psutil

PROGRAM = Path(__file__).with_name("phases.py")  # runs another, and prints how far it has come
ROLL_CALL = Path(__file__).with_name("roll_call.py")  # prints which of how many ranks this is, and stays
_LONGEST_S = 60.0  # until ranks have met
# Each ends when the last of the processes has printed its line; noticing, when the first has.
_ENDS = {
    "noticing": "Worker group FAILED",
    "meeting": "Rendezvous complete for workers",
    "starting Python": "phase: Python has started",
    "importing torch": "phase: torch is imported",
    "further imports, joining the group": "phase: the group is joined",
    "data, model, checkpoint": "phase: the checkpoint is loaded",
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
    phases["repeated steps"] = min(when for when, _ in steps if when > max(phases.values()))
    return phases


def shrink_and_grow(start: Callable[[], Popen[str]]) -> Iterator[tuple[str, list[str]]]:
    """Yield (what was done, the lines that ranks then printed): two agents, one of them killed, a new one started.

    `start()` starts a torchrun agent for ROLL_CALL, with text pipes. All of them are ended at the end. Raises
    queue.Empty if the ranks do not meet.
    """
    agents: list[Popen[str]] = []
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def begin():
        agents.append(start())
        threading.Thread(
            target=lambda pipe: [lines.put(line.strip()) for line in pipe], args=(agents[-1].stdout,)
        ).start()

    try:
        begin()
        begin()
        yield "two agents", sorted(lines.get(timeout=_LONGEST_S) for _ in range(2))
        _end(agents.pop())
        yield "one is killed", [lines.get(timeout=_LONGEST_S)]
        begin()
        yield "a new one comes", sorted(lines.get(timeout=_LONGEST_S) for _ in range(2))
    finally:
        for agent in agents:
            _end(agent)


def _end(agent):
    """Kill an agent and its workers."""
    workers = psutil.Process(agent.pid).children(recursive=True)
    agent.kill()
    for worker in workers:
        worker.kill()
    agent.communicate()
