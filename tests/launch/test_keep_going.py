"""`launch(…, keep_going=True)`: the others go on without ranks that fail, and what became of those is told."""

import os
import signal
import sys
import time

import psutil
import pytest
import torch
import torch.distributed as dist

from course_utils import Nodes, WorkerError, launch
from course_utils.parallel.parameter_server.client import ServerGone

ENDS = {"killed": lambda: os.kill(os.getpid(), signal.SIGKILL), "raised": lambda: 1 / 0, "left": lambda: sys.exit(3)}


def fail_on_one(ends, failing, num_messages):
    """Rank `failing` ends while ranks 0 and 1, if they are others, exchange messages before and after its end."""
    rank = dist.get_rank()
    if rank in failing:
        print("here I end", flush=True)
        ENDS[ends]()
    x = torch.zeros(1)
    for _ in range(num_messages):
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        time.sleep(0.002)  # so that the other has ended long before the last
    return os.getpid()


@pytest.mark.parametrize("ends", ENDS)
def test_the_others_go_on(ends, capfd):
    run = launch(fail_on_one, ends, [2], 200, world_size=3, backend="gloo", timeout=60, keep_going=True)
    assert [value is None for value in run.results] == [False, False, True]
    assert "here I end" in run.logs[2]
    assert list(run.failures) == [2]
    error = run.failures[2]
    assert isinstance(error, WorkerError) and error.rank == 2
    wanted = {
        "killed": (-9, "", "killed (SIGKILL)"),
        "raised": (None, "ZeroDivisionError", "division by zero"),
        "left": (3, "SystemExit", "exit code 3"),
    }[ends]
    assert (error.exitcode, error.type_name) == wanted[:2] and wanted[2] in str(error)
    assert "rank 2" in (shown := capfd.readouterr().out) and wanted[2] in shown
    assert not any(psutil.pid_exists(pid) for pid in run.results[:2])


def test_where_all_fail_the_cell_does():
    with pytest.raises(WorkerError, match="rank [01]: ZeroDivisionError") as caught:
        launch(fail_on_one, "raised", [0, 1], 1, world_size=2, timeout=60, keep_going=True)
    assert list(caught.value.run.failures) == [0, 1]


def blame_a_server_that_is_then_killed():
    pids = [None] * 2
    dist.all_gather_object(pids, os.getpid())
    if dist.get_rank() == 1:
        raise ServerGone("server 0 is gone")
    while psutil.pid_exists(pids[1]):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_cause_is_the_one_that_blames_nobody():
    with pytest.raises(WorkerError, match="^rank 0: killed") as caught:
        launch(blame_a_server_that_is_then_killed, world_size=2, backend="gloo", timeout=30, keep_going=True)
    assert "rank 1 failed too: ServerGone: server 0 is gone" in str(caught.value)


def wait_for_one_that_is_gone(seconds):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(seconds)


@pytest.mark.alone
def test_time_is_up_all_the_same_and_it_is_said_who_had_gone():
    begun = time.monotonic()
    with pytest.raises(WorkerError, match="no end after 1 s") as caught:
        launch(wait_for_one_that_is_gone, 60, world_size=2, timeout=1, keep_going=True)
    assert time.monotonic() - begun < 20
    assert "rank 1 was killed" in str(caught.value) and caught.value.rank == 0 and caught.value.timed_out


def test_a_run_in_which_none_fails_has_no_failures(capfd):
    run = launch(fail_on_one, "raised", [], 1, world_size=2, timeout=60, keep_going=True)
    assert run.failures == {} and None not in run.results
    assert "rank" not in capfd.readouterr().out.replace("two ranks", "")


def test_ranks_that_others_start_end_together():
    with pytest.raises(ValueError, match="keep_going works only for ranks that launch itself starts"):
        launch(fail_on_one, "raised", [], 1, on=Nodes(2), keep_going=True)
