"""Batch files for programs of other frameworks: what they start, and that it starts on a Slurm that is really there."""

import json
import os
import re
import shlex
import subprocess
import textwrap

import pytest

from course_utils import frameworks
from course_utils import slurm as batch
from tests.helpers.slurm_cluster import MISSING, REASON
from tests.helpers.slurm_guard import NODES

needs_slurm = pytest.mark.skipif(bool(MISSING), reason=REASON)
NO_HOROVOD = frameworks.problem("horovod.torch")


def essential(text):
    """The commands of a batch file, each in one line."""
    lines = re.sub(r" \\\n *", " ", text[text.index("\nset -e") :]).splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_mirrored_is_one_process():
    text = str(batch.Job("mirrored", gpus_per_node=4, program="train.py", arguments=("--epochs", "2")))
    assert "# 1 node: 1 process on 4 GPUs." in text
    assert essential(text)[-1].endswith("--kill-on-bad-exit=1 python train.py --epochs 2")
    assert "endpoint" not in text


def test_the_python_is_that_of_the_other_frameworks(monkeypatch):
    monkeypatch.setenv("COURSE_ELSEWHERE", "/a folder/elsewhere")
    for strategy in batch.ELSEWHERE:
        text = str(batch.Job(strategy, program="train.py"))
        assert """export PATH='/a folder/elsewhere/bin':"$PATH\"""" in text
        assert ("export PYTHONPATH=" in text) == (strategy == "horovod")
    assert "/a folder" not in str(batch.Job("ddp"))


def test_horovodrun_is_told_of_all_servers():
    text = str(batch.Job("horovod", nodes=3, gpus_per_node=4, program="train.py"))
    assert essential(text)[-1] == 'horovodrun --gloo -np 12 -H "$hosts" python train.py'
    assert "srun" not in " ".join(essential(text))
    hosts = next(line for line in essential(text) if line.startswith("hosts="))
    played = "scontrol() { printf 'server1\\nserver2\\nserver3\\n'; }\n" + hosts + '\necho "$hosts"'
    done = subprocess.run(["bash", "-c", played], capture_output=True, text=True)
    assert done.stdout == "server1:4,server2:4,server3:4\n"  # as in the slides


@pytest.mark.parametrize("strategy", batch.ELSEWHERE)
def test_a_program_is_needed(strategy):
    with pytest.raises(
        ValueError, match=f"^{strategy} needs a program of yours \\(--program FILE\\): the course's own is torch's$"
    ):
        batch.Job(strategy)


def test_mirrored_cannot_leave_its_node():
    with pytest.raises(ValueError, match="mirrored on 2 nodes cannot be: .*; take multiworker"):
        batch.Job("mirrored", nodes=2, program="train.py")


@pytest.mark.parametrize("strategy", batch.ELSEWHERE)
def test_shells_read_it(strategy):
    text = str(batch.Job(strategy, nodes=1, gpus_per_node=0, workers_per_node=1, program="my program.py"))
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    assert shlex.split(essential(text)[-1])[-1] == "my program.py"


@needs_slurm
def test_every_task_knows_all_addresses_and_its_own_place(slurm, tmp_path):
    (tmp_path / "say.py").write_text("import os, sys\nprint(os.environ['TF_CONFIG'], sys.argv[1:])")
    job = batch.Job(
        "multiworker", nodes=2, gpus_per_node=0, time="00:02:00", program="say.py", arguments=("two words",)
    )
    (tmp_path / "job.sbatch").write_text(str(job))
    number = slurm.submit("job.sbatch", tmp_path)
    assert slurm.wait(number) == "COMPLETED"
    lines = (tmp_path / f"multiworker-{number}.out").read_text().splitlines()
    assert all(line.endswith("['two words']") for line in lines)
    said = sorted(
        (json.loads(line.removesuffix(" ['two words']")) for line in lines), key=lambda each: each["task"]["index"]
    )
    port = 20000 + int(number) % 10000
    cluster = {"worker": [f"{node}:{port}" for node in NODES[:2]]}
    assert said == [{"cluster": cluster, "task": {"type": "worker", "index": i}} for i in range(2)]


@needs_slurm
@pytest.mark.skipif(NO_HOROVOD is not None, reason=str(NO_HOROVOD))
def test_horovod_trains_in_a_job(slurm, tmp_path):
    """The tests' nodes have names that no program can look up, so a command of the test's own gives this machine's."""
    (tmp_path / "average.py").write_text(
        textwrap.dedent("""
        import horovod.torch as hvd, torch
        hvd.init()
        mean = hvd.allreduce(torch.tensor(float(hvd.rank()))).item()
        print("rank", hvd.rank(), "of", hvd.size(), "mean", mean)
    """)
    )
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho localhost\n")
    (tmp_path / "scontrol").chmod(0o755)
    job = batch.Job("horovod", gpus_per_node=0, time="00:02:00", program="average.py")
    (tmp_path / "job.sbatch").write_text(str(job))
    path = f"{tmp_path}{os.pathsep}{slurm.env['PATH']}"
    number = slurm.submit("job.sbatch", tmp_path, f"--export=ALL,PATH={path},TF_CPP_MIN_LOG_LEVEL=3")
    assert slurm.wait(number) == "COMPLETED", (tmp_path / f"horovod-{number}.out").read_text()
    said = re.findall(r"<stdout>:(rank .*)", (tmp_path / f"horovod-{number}.out").read_text())
    assert sorted(said) == ["rank 0 of 2 mean 0.5", "rank 1 of 2 mean 0.5"]
