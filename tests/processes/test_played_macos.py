"""On a Python that plays macOS, a launch works as on Linux; and every decision by the system is in one list."""

import json
import re
import subprocess
import sys
from pathlib import Path

import psutil

from course_utils.processes import linux, network
from tests.helpers import played_macos
from tests.helpers.kernel import wait_until

ROOT = Path(__file__).resolve().parents[2]
BY_SYSTEM = (
    r"""sys\.platform|platform\.(?:system|processor|machine)\(|["'(]/proc/|"/dev/shm"|nsswitch|"""
    r"""hasattr\(os,|sched_\w+affinity"""
)
SCRIPT = """
import json, os, signal, sys, threading, time
import torch, torch.distributed as dist
from course_utils import Ranks, WorkerError, launch, log

def add(x):
    dist.all_reduce(x)
    log(step=1)
    return sys.platform, x

def fail():
    if dist.get_rank() == 1:
        raise ValueError("mine")
    dist.barrier()

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return torch.tensor(i)

def load():
    return [batch.tolist() for batch in torch.utils.data.DataLoader(Numbers(), 2, num_workers=1)]

def never_end():
    print("began", flush=True)
    while True:
        time.sleep(0.1)

def error_of(*args, **kwargs):
    try:
        launch(*args, world_size=2, **kwargs)
    except (WorkerError, KeyboardInterrupt) as error:
        return [type(error).__name__, getattr(error, "type_name", None), getattr(error, "exitcode", None)]

run = launch(add, torch.ones(100_000), world_size=2)
found = {"results": [(where, x.sum().item()) for where, x in run.results], "rows": len(run.metrics)}
found |= {"fails": error_of(fail), "dies": error_of(die), "loads": launch(load, world_size=1).results}
ranks = Ranks(2)
found["ranks"] = [x.tolist() for _, x in ranks.run(add, torch.ones(1))]
ranks.close()
found["timeout"] = error_of(never_end, timeout=1)
print(json.dumps(found), flush=True)
launch(never_end, world_size=2)
"""


def test_a_launch_works_and_nothing_outlives_a_killed_script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    env = played_macos.environment(tmp_path / "played", ROOT) | {"COURSE_TEST_MARK": str(tmp_path)}
    command = [sys.executable, "script.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as script:
        found = next(json.loads(line) for line in script.stdout if line.startswith("{"))
        assert next(line for line in script.stdout if line.endswith("began\n"))
        script.kill()
    assert found["results"] == [["darwin", 200_000.0]] * 2 and found["rows"] == 2
    assert found["fails"][:2] == ["WorkerError", "ValueError"] and found["dies"][::2] == ["WorkerError", -9]
    assert found["loads"] == [[[0, 1], [2, 3]]] and found["ranks"] == [[2.0], [2.0]]
    assert found["timeout"][0] == "WorkerError"
    wait_until(lambda: not carrying(tmp_path), "all have ended with the script")


TIED = """
import os, time
from course_utils.processes import linux
parent = os.getpid()
if os.fork() == 0:
    os.setsid()
    linux.end_with_parent(parent)
    print("tied", flush=True)
time.sleep(600)
"""


def test_a_process_ends_with_its_parent(tmp_path):
    env = played_macos.environment(tmp_path / "played", ROOT) | {"COURSE_TEST_MARK": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", TIED], env=env, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "tied\n"
        assert len(carrying(tmp_path)) == 2
        parent.kill()
        wait_until(lambda: not carrying(tmp_path), "the child has ended with its parent")


def carrying(mark):
    """The processes that were started with COURSE_TEST_MARK=`mark` in their environment, and live."""
    entry, found = f"COURSE_TEST_MARK={mark}".encode(), []
    for process in psutil.process_iter():
        try:
            if entry in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found.append(process.pid)
        except OSError:
            pass
    return found


def test_loopback_is_found_by_its_address(monkeypatch):
    entry = type("Address", (), {"address": "127.0.0.1"})
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"en0": [], "lo0": [entry]})
    network.loopback.cache_clear()
    try:
        assert network.loopback() == "lo0"
    finally:
        network.loopback.cache_clear()


def test_every_decision_by_the_system_is_listed():
    listed = set(re.findall(r"`([\w/]+\.py)`", linux.__doc__))
    package = ROOT / "course_utils"
    texts = {path.relative_to(package).as_posix(): path.read_text() for path in package.rglob("*.py")}
    deciding = {name for name, text in texts.items() if re.search(BY_SYSTEM, re.sub(r'(?s)""".*?"""', "", text))}
    assert deciding == listed | {"processes/linux.py"}
