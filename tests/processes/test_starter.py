"""Processes that run one program: each ends alone, and all end with whoever started them."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from course_utils.processes import interrupts
from course_utils.processes.starter import Starter
from tests.helpers.kernel import LIMIT_S, wait_until

PROGRAM = """
import os, signal, sys, time
print("begins", os.getpid(), *sys.argv[1:], __name__, flush=True)
if sys.argv[1] == "fails":
    raise ValueError("on purpose")
if sys.argv[1] == "interrupts":
    os.kill(int(os.environ["TO_INTERRUPT"]), signal.SIGINT)
if sys.argv[1] != "ends":
    time.sleep(1000)
"""
PARENT = """
import sys
from course_utils.processes.starter import Starter
with Starter(sys.argv[1]) as starter:
    starter.start(0, "sleeps")
    while not starter.lines():
        starter.wait(0.01)
    print(starter.lines()[0], flush=True)
    starter.wait(1000)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("starter") / "program.py"
    path.write_text(PROGRAM)
    return path


def ended(starter, wanted):
    """{number: exit code} of the first `wanted` processes to end."""
    codes = {}
    wait_until(lambda: codes.update(starter.wait(0.1)) or len(codes) >= wanted, f"{wanted} have ended: {codes}")
    return codes


def pids(starter):
    return [int(line.split()[1]) for line in starter.lines() if line.startswith("begins")]


def test_each_ends_alone_and_all_end_with_the_block_also_when_it_is_interrupted(program):
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        with Starter(program, TO_INTERRUPT=str(os.getpid())) as starter:
            for number, what in enumerate(["sleeps", "fails", "ends", "sleeps"]):
                starter.start(number, what, "more")
            assert ended(starter, 2) == {1: 1, 2: 0}
            wait_until(lambda: len(pids(starter)) == 4, "all have begun")
            starter.kill(0)
            assert ended(starter, 1) == {0: -signal.SIGKILL} and starter.running == [3]
            starter.kill(0)  # there is none any more
            lines = starter.lines()
            assert sum(line.endswith(" more __main__") for line in lines) == 4
            assert "ValueError: on purpose" in lines and "on purpose" in starter.last_lines()
            all_pids = pids(starter)
            assert len(set(all_pids)) == 4
            starter.start(4, "interrupts")
            starter.wait(LIMIT_S)
            raise AssertionError("it was not interrupted")
    assert not any(map(psutil.pid_exists, all_pids))
    assert not [child for child in psutil.Process().children() if "processes.starter" in " ".join(child.cmdline())]


def test_all_end_if_the_one_that_started_them_is_killed(program):
    with subprocess.Popen([sys.executable, "-c", PARENT, str(program)], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline().split()[1])
        assert psutil.pid_exists(pid)
        parent.kill()
    wait_until(lambda: not psutil.pid_exists(pid), "it has ended, too")
