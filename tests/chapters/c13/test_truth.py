"""What chapter 13's checks take for the truth, held against torchrun and Slurm themselves."""

import json
import os
import subprocess
import sys

import pytest

from course_utils.launch.forkserver import rendezvous
from tests.helpers.slurm_cluster import MISSING, REASON
from tools import answers, notebooks

CHAPTER = answers.chapter_of("13.1")
TELL = """
import json, os, sys
names = "GROUP_RANK", "LOCAL_RANK", "RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"
with open(f"{sys.argv[1]}/{os.environ['RANK']}", "w") as file:
    json.dump({name: os.environ[name] for name in names}, file)
"""


def solution(exercise):
    """The chapter's solution of an exercise, a function."""
    names = {}
    exec(notebooks.read_solutions(CHAPTER)[exercise], names)
    return next(value for name, value in names.items() if callable(value) and not name.startswith("__"))


def test_unequal_agents_number_their_ranks_as_exercise_13_1_does(tmp_path):
    program, gpus = tmp_path / "tell.py", [1, 2]
    program.write_text(TELL)
    (tmp_path / "told").mkdir()
    with rendezvous.store() as store:
        meeting = [
            "--nnodes",
            "2",
            "--rdzv-id",
            "7",
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"127.0.0.1:{store.port}",
            "--rdzv-conf",
            "is_host=false",
            "--local-addr",
            "127.0.0.1",
        ]
        agents = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "torch.distributed.run",
                    *meeting,
                    "--nproc-per-node",
                    str(count),
                    program,
                    tmp_path / "told",
                ],
                stderr=subprocess.DEVNULL,
            )
            for count in gpus
        ]
        assert [agent.wait(timeout=120) for agent in agents] == [0, 0]
    told = [json.loads((tmp_path / "told" / str(rank)).read_text()) for rank in range(3)]
    # nodes in the order of their numbers
    met = [int(env["LOCAL_WORLD_SIZE"]) for env in told if env["LOCAL_RANK"] == "0"]
    assert sorted(met) == gpus
    assert told == [solution("13.1")(rank, met) for rank in range(3)]


@pytest.mark.skipif(bool(MISSING), reason=REASON)
def test_a_batch_file_of_exercise_13_3_gives_each_task_its_numbers(slurm, tmp_path):
    program = tmp_path / "tell"
    program.write_text(
        "#!/bin/sh\necho $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $SLURMD_NODENAME > $1/$RANK\n"
    )
    program.chmod(0o755)
    (tmp_path / "told").mkdir()
    (tmp_path / "job.sbatch").write_text(solution("13.3")(2, 2, 5, f"{program} {tmp_path / 'told'}"))
    done = slurm.run("sbatch", "--wait", "--output", os.devnull, "job.sbatch", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = [(tmp_path / "told" / str(rank)).read_text().split() for rank in range(4)]
    assert told == [[str(rank), str(rank % 2), "4", "2", "n1", f"n{1 + rank // 2}"] for rank in range(4)]
