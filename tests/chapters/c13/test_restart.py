"""The phases of a restart, read from processes that print what torchrun's agents and their programs print."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from course_utils.chapters.c13_many_machines import restart
from course_utils.launch import rendezvous

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
print("phase: Python has started"), print("phase: torch is imported"), print("phase: the group is joined")
print("phase: the checkpoint is loaded"), print("step 27", flush=True)
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
    names = ["noticing", "meeting", "starting Python", "importing torch"]
    assert list(phases) == [*names, "further imports, joining the group", "data, model, checkpoint", "repeated steps"]
    assert all(end > 0 for end in ends) and ends[2:] == sorted(ends[2:])


def test_an_agent_that_gives_up_is_an_error():
    with pytest.raises(RuntimeError, match="torchrun gave up: "):
        restart.watch(start(fails=1), kill_at=20)


def test_a_job_goes_on_without_an_agent_and_takes_a_new_one():
    started = []
    with rendezvous.store() as store:
        meeting = ["--nnodes", "1:2", "--nproc-per-node", "1", "--rdzv-id", "7", "--rdzv-backend", "c10d",
                   "--rdzv-endpoint", f"127.0.0.1:{store.port}", "--rdzv-conf",
                   "is_host=false,last_call_timeout=2,keep_alive_interval=1", "--max-restarts", "3"]  # fmt: skip
        env = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "CUDA_VISIBLE_DEVICES": ""}

        def start():
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "torch.distributed.run", *meeting, restart.ROLL_CALL],
                    env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip
            return started[-1]

        said = dict(restart.shrink_and_grow(start))
    both = ["rank 0 of 2: 32 images of each batch", "rank 1 of 2: 32 images of each batch"]
    assert said == {
        "two agents": both, "one is killed": ["rank 0 of 1: 64 images of each batch"], "a new one comes": both,
    }  # fmt: skip
    assert len(started) == 3 and all(agent.poll() is not None for agent in started)


# Its first attempt meets, then sleeps; the second meets once more, and ends.
SLEEPER = """
import os, sys, time, torch.distributed as dist
file = sys.argv[1] + "/second"
is_first = not os.path.exists(file)
print("begun", flush=True)
dist.init_process_group("gloo")
print("met", flush=True)
is_first and time.sleep(100)
"""


def test_at_a_new_store_the_ranks_of_the_next_attempt_meet(tmp_path):
    """At the old one they sometimes do, and sometimes read the address of the rank that was killed."""
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    env = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "CUDA_VISIBLE_DEVICES": ""}
    told = [tmp_path / "0", tmp_path / "1"]

    def said(word):
        return [file.read_text().count(word) for file in told]

    with rendezvous.store() as store:
        meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-id", "7", "--rdzv-backend", "c10d",
                   "--rdzv-endpoint", f"127.0.0.1:{store.port}", "--rdzv-conf", "is_host=false",
                   "--max-restarts", "1"]  # fmt: skip
        command = [sys.executable, "-m", "torch.distributed.run", *meeting, tmp_path / "sleeper.py", tmp_path]
        agents = [subprocess.Popen(command, env=env, stdout=file.open("w"), stderr=subprocess.DEVNULL) for file in told]
        try:
            wait(lambda: said("met") == [1, 1], 60)
            (tmp_path / "second").touch()
            psutil.Process(agents[0].pid).children()[-1].kill()
            assert [agent.wait(timeout=60) for agent in agents] == [0, 0]
            assert said("begun") == said("met") == [2, 2]
        finally:
            for agent in agents:
                workers = psutil.Process(agent.pid).children() if agent.poll() is None else []
                agent.kill()
                agent.wait()
                for worker in workers:
                    worker.kill()


def wait(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.1)
