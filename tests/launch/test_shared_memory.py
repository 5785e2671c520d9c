"""What is shared in the notebook is shared with the workers, and what is mapped stays mapped: nothing is copied."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.helpers.kernel import REPOSITORY

SETUP = """
import os, tempfile
import numpy as np, torch, torch.distributed as dist
from torch import nn
from course_utils import Nodes, Ranks, launch
from course_utils.launch.call import Call

def size(*args): return os.fstat(Call(print, args).dump(shares_memory=True)).st_size
def add(*things):
    with torch.no_grad():
        for thing in things:
            for part in thing.parameters() if isinstance(thing, nn.Module) else [thing]:
                part[dist.get_rank()] += 1
"""


@pytest.fixture(scope="module")
def prepared(new_notebook):
    made = new_notebook(setup=SETUP)
    return made


def test_a_shared_model_is_trained_by_all_ranks(prepared):
    """Hogwild: as under torch.multiprocessing, each writes into the one model; tied and sliced parts stay so."""
    assert prepared.run("""
model = nn.Sequential(nn.Linear(1000, 2, bias=False), nn.Linear(1000, 2, bias=False))
model[1].weight = model[0].weight
with torch.no_grad(): model[0].weight.zero_()
model.share_memory()
launch(add, model, model[0].weight[:, 5:7], world_size=2)
with Ranks(2) as ranks: ranks.run(add, model)
model[0].weight[:, 0].tolist(), model[0].weight[:, 6].tolist(), size(model) < 6000
""").value == ([2.0, 2.0], [3.0, 3.0], True)


def test_a_copy_for_ranks_that_share_no_memory_is_announced(prepared):
    said = prepared.run("""
shared, own = torch.zeros(500_000).share_memory_(), torch.zeros(500_000)
launch(torch.sum, shared, world_size=2, on=Nodes(2))
launch(torch.sum, own, world_size=2, on=Nodes(2))
launch(torch.sum, shared, world_size=2)
""").stdout
    assert said.count("were copied") == 1 and "2.0 MB of shared memory or a mapped file were copied" in said


def test_what_is_not_shared_is_each_workers_own(prepared):
    assert prepared.run("""
tensor = torch.zeros(2)
launch(add, tensor, world_size=2)
tensor.tolist()
""").value == [0.0, 0.0]


@pytest.mark.parametrize(
    "made",
    [
        "np.memmap(path, np.float32, 'r+', 0, (100_000,))",
        "np.memmap(path, np.float32, 'r+', 400, (1000, 99), 'F')",
        "torch.from_file(path, True, 100_000)",
        "torch.from_file(path, True, 100_000)[10:]",
    ],
)
def test_a_mapped_file_stays_mapped(prepared, made):
    assert prepared.run(f"""
path = tempfile.mkstemp()[1]
np.zeros(100_000, np.float32).tofile(path)
mapped = {made}
launch(add, mapped, world_size=2)
found = float(mapped[0].sum()) + float(mapped[1].sum()), float(np.fromfile(path, np.float32).sum()), size(mapped)
os.remove(path)
found[:2], found[2] < 5000
""").value in [((2.0, 2.0), True), ((198.0, 198.0), True)]


def test_a_part_of_a_mapped_file_arrives_with_its_values(prepared):
    assert prepared.run("""
path = tempfile.mkstemp()[1]
np.arange(1000, dtype=np.float32).tofile(path)
whole = np.memmap(path, np.float32, "r", 0, (1000,))
private = np.memmap(path, np.float32, "c", 0, (1000,))
private[3] = -1
values = launch(lambda *arrays: [float(array[3]) for array in arrays], whole[10:], whole[::2], private, world_size=1)[0]
os.remove(path)
values
""").value == [13.0, 6.0, -1.0]


def test_a_result_that_is_shared_in_the_worker_comes_back(prepared):
    assert prepared.run("launch(lambda: torch.ones(3).share_memory_(), world_size=2)[1].tolist()").value == [1.0] * 3


def test_elsewhere_it_is_copied(prepared):
    assert prepared.run("""
tensor = torch.zeros(2).share_memory_()
launch(add, tensor, on=Nodes(2), world_size=2)
tensor.tolist()
""").value == [0.0, 0.0]


def test_a_small_shared_memory_is_named_with_its_cure(tmp_path):
    """Docker gives a container 64 MB."""
    script = tmp_path / "script.py"
    script.write_text("""
import torch
from course_utils import launch
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.ones(4_000_000)
def load():
    for _ in torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=1): pass
if __name__ == "__main__":
    launch(load, world_size=1)
""")
    apart = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        f"mount -t tmpfs -o size=32M tmpfs /dev/shm && exec {sys.executable} {script}",
    ]
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode
    ):
        pytest.skip("no other /dev/shm can be mounted here: that takes unshare and root's rights")
    done = subprocess.run(apart, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "/dev/shm" in done.stderr and "--shm-size=8g" in done.stderr, done.stderr
