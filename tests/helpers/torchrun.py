"""One torchrun for all programs of the tests: what it and its ranks import beforehand takes seconds."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from tests.helpers.kernel import LIMIT_S, REPOSITORY, wait_until

# Each rank forks for each program, and has imported for all of them what optimizers, DDP and FSDP need. Each program
# has a store of its own, for in the agent's are still the addresses of earlier ranks.
_RANK = """
import os, runpy, sys
import torch.distributed, torch.distributed.fsdp, torch.distributed.pipelining, torch.distributed.tensor.parallel
import torch._dynamo
import course_utils.launch
rank = os.environ["RANK"]
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
for line in open(f"programs-{rank}"):
    os.environ["MASTER_PORT"], _, path = line.strip().partition(" ")
    folder, name = os.path.split(path)
    if not (pid := os.fork()):
        os.chdir(folder)
        sys.path[0], sys.argv[:] = folder, [name]
        output = os.open(f"output-{rank}", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1), os.dup2(output, 2)
        runpy.run_path(name, run_name="__main__")
        sys.exit()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with open(f"{folder}/code-{rank}.part", "w") as file:
        file.write(str(code))
    os.rename(file.name, f"{folder}/code-{rank}")
"""


def free_ports(count):
    """So many ports, as text, that nobody has now."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [str(listener.getsockname()[1]) for listener in listeners]


@pytest.fixture(scope="session")
def torchrun(tmp_path_factory):
    """A function that runs a program, alone in its folder, under torchrun as two ranks.

    It returns their exit codes and what they printed.
    """
    folder = tmp_path_factory.mktemp("torchrun")
    (folder / "rank.py").write_text(_RANK)
    queues = [folder / f"programs-{rank}" for rank in range(2)]
    for queue in queues:
        os.mkfifo(queue)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "rank.py"]
    environment = {"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=folder, env=environment)

    def run(program):
        codes = [program.parent / f"code-{rank}" for rank in range(2)]
        (port,) = free_ports(1)
        for file in files:
            file.write(f"{port} {program}\n")
            file.flush()
        wait_until(lambda: process.poll() is not None or all(code.exists() for code in codes), "both have ended")
        said = [(program.parent / f"output-{rank}").read_text() for rank in range(2)]
        return [int(code.read_text()) for code in codes], said

    with ExitStack() as stack:
        files = [stack.enter_context(open(queue, "w")) for queue in queues]  # waits for the rank that reads it
        yield run
    assert process.wait(LIMIT_S) == 0
