"""The phases of a restart, read from processes that print what torchrun's agents and their programs print."""

import subprocess
import sys

import pytest

from course_utils.chapters.c13_many_machines import restart

AGENT = """
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("Rendezvous complete for workers", file=sys.stderr)
if sys.argv[1] == "0":
    print("step 15", flush=True), print("step 20", flush=True)
    sys.stdin.readline()  # until the other agent's worker is dead
    worker.kill()
worker.wait()
print("I1126 api.py:941] [default] Worker group FAILED. 3/3 attempts left", file=sys.stderr)
print("Rendezvous complete for workers", file=sys.stderr)
print("phase: Python has started"), print("phase: torch is imported"), print("step 27", flush=True)
sys.exit(int(sys.argv[2]))
"""


def start(fails=0):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    agents = [
        subprocess.Popen([sys.executable, "-c", AGENT, str(i), str(fails * i)], text=True, **pipes) for i in (0, 1)
    ]
    agents[0].stdin.close()
    return agents


def test_a_worker_of_the_last_agent_is_killed_and_the_phases_follow_one_another():
    steps, phases = restart.watch(start(), kill_at=20)
    assert [step for when, step in steps if when <= 0] == [15, 20] and {step for _, step in steps} == {15, 20, 27}
    ends = list(phases.values())
    assert list(phases) == ["noticing", "meeting", "starting Python", "importing torch", "going on"]
    assert all(end > 0 for end in ends) and ends[2:] == sorted(ends[2:])


def test_an_agent_that_gives_up_is_an_error():
    with pytest.raises(RuntimeError, match="torchrun gave up: "):
        restart.watch(start(fails=1), kill_at=20)
