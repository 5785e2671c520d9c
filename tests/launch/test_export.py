"""`run.export(folder)`: the files it writes run without a notebook, and come to the same."""

import ast
import re
import subprocess
import sys
from pathlib import Path

from conftest import REPOSITORY

CELLS = """
import functools, math
import torch.nn.functional as F
from torch import nn
WIDTH = 3
table = torch.arange(4.0)

class Doubled(nn.Linear):
    def forward(self, x):
        return scale(super().forward(x), 2)

class Destroyed:
    def __del__(self):
        print("destroyed")

def scale(x, factor):
    return x * factor

def work(start, *, power):
    torch.manual_seed(0)
    math.kept = Destroyed()
    x = torch.full((1, WIDTH), float(start)) ** power
    y = F.relu(Doubled(WIDTH, 4)(x)).sum() + table.sum() + math.floor(1.5)
    dist.all_reduce(y)
    return y.item()
"""


def test_the_files_run_under_torchrun(notebook, tmp_path):
    notebook.run(CELLS)
    results = notebook.run("run = launch(work, 2, power=3, world_size=2); run.results").value
    notebook.run(f"paths = run.export({str(tmp_path / 'job')!r})")
    names = notebook.run("[path.name for path in paths]").value
    assert names == ["work.py", "work.arguments", "work.sbatch"]
    program = (tmp_path / "job" / "work.py").read_text()
    ast.parse(program)
    assert (
        "WIDTH = 3" in program
        and "import torch.nn.functional as F" in program
        and "class Doubled(nn.Linear):" in program
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "work.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path / "job",
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )
    # Python's own end, where gloo may abort, is left out
    assert done.returncode == 0 and "destroyed" not in done.stdout
    assert sorted(re.findall(r"rank (\d): (.*)", done.stdout)) == [
        (str(rank), str(value)) for rank, value in enumerate(results)
    ]
    batch = (tmp_path / "job" / "work.sbatch").read_text()
    assert "--nproc-per-node 2" in batch and "work.py" in batch


def test_two_nodes_make_a_batch_file_for_two(notebook, tmp_path):
    notebook.run("from course_utils import Nodes\ndef work():\n    return dist.get_rank()")
    notebook.run(f"launch(work, world_size=4, on=Nodes(2)).export({str(tmp_path)!r})")
    batch = Path(tmp_path, "work.sbatch").read_text()
    assert "#SBATCH --nodes=2" in batch and "--nproc-per-node 2" in batch


def test_what_cannot_be_written(notebook, tmp_path):
    outcome = notebook.fail(f"launch(lambda: 1, world_size=2).export({str(tmp_path)!r})")
    assert outcome.error == "ValueError" and "export takes a function that has a name" in outcome.message
    assert not list(tmp_path.iterdir())
