"""What knows nothing of ranks: children that end, with and without what only newer systems have."""

import os
import signal
import subprocess
import sys
import time

import pytest

from course_utils.processes import linux


@pytest.mark.parametrize("has_waitid", [True, False], ids=["waitid", "without waitid"])
def test_children_that_ended_are_collected_and_their_groups_killed(monkeypatch, has_waitid):
    """On macOS, os.waitid exists only since Python 3.13."""
    if not has_waitid:
        monkeypatch.delattr(os, "waitid", raising=False)
    reader, writer = os.pipe()
    leader = os.fork()
    if leader == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(reader)
            time.sleep(60)  # holds the pipe's writing end, until it is killed with the group
        os._exit(3)
    os.close(writer)
    found = {}
    deadline = time.monotonic() + 100
    while leader not in found and time.monotonic() < deadline:
        found |= dict(linux.ended_children({leader}))
    assert os.waitstatus_to_exitcode(found[leader]) == 3
    assert os.read(reader, 1) == b""  # the end of file: nobody of the group is left
    os.close(reader)


def test_those_who_carry_a_mark_are_killed_and_nobody_else():
    children = {}
    for mark in ("ours", "others"):
        environment = dict(os.environ, COURSE_TEST_MARK=mark)
        children[mark] = os.spawnvpe(os.P_NOWAIT, "setsid", ["setsid", "sleep", "60"], environment)
    deadline = time.monotonic() + 100
    linux.kill_marked("COURSE_TEST_MARK", "ours")
    while not (ended := os.waitpid(children["ours"], os.WNOHANG)[0]) and time.monotonic() < deadline:
        linux.kill_marked("COURSE_TEST_MARK", "ours")  # it had not got its environment yet
    assert ended == children["ours"]
    assert os.waitpid(children["others"], os.WNOHANG) == (0, 0)
    os.kill(children["others"], signal.SIGKILL)
    os.waitpid(children["others"], 0)


LEAVING = """
import atexit, sys, threading, time
from course_utils.processes import ending

class Destroyed:
    def __del__(self):
        print("destroyed", flush=True)

kept = Destroyed()
atexit.register(print, "exit handler")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
sys.stdout.write("buffered ")
ending.leave({code})
"""


@pytest.mark.parametrize("code", ["", "2"])
def test_leaving_is_an_interpreters_end_without_destructors(code):
    command = [sys.executable, "-c", LEAVING.format(code=code)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60)  # not a terminal: buffered
    assert done.returncode == int(code or 0)
    assert done.stdout == "buffered thread\nexit handler\n"
