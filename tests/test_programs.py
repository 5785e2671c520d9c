"""The programs beside the chapters run as a reader would run them, and say in every line what one device would not need."""

import os
import re
import subprocess
import sys

import pytest
import torch

from tools import notebooks

PROGRAMS = notebooks.NOTEBOOKS / "programs"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
MARKS = {"ddp.py": "# DDP", "fsdp2.py": "# FSDP", "pipeline.py": "# PIPE", "tensor_parallel.py": "# TP"}  # of what one device's program would not need
# Of one device's program nothing speaks of these.
OF_SEVERAL = re.compile(
    r"\b(dist|rank|local_rank|world_size|num_local|env|sampler|os|device_ids|mesh|unit|fully_shard|options|stage|schedule|tp|plan|parts)\b"
    r"|Distributed(Data|Sampler)|StateDict|get_model_state_dict|Pipeline|1F1B|DTensor"
)


def run(*command):
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(notebooks.ROOT), env.get("PYTHONPATH")]))
    env["CUDA_VISIBLE_DEVICES"] = ""  # float64 on the CPU is what both can be held to
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return re.findall(r"^epoch (\d+): loss (\S+)$", done.stdout, flags=re.MULTILINE)


def test_every_program_is_tried():
    assert sorted(MARKS) == sorted(path.name for path in PROGRAMS.glob("*.py"))


@pytest.mark.parametrize("name", MARKS)
def test_alone_and_under_torchrun_a_program_ends_at_the_same_loss(name, tmp_path):
    program, files = str(PROGRAMS / name), [str(tmp_path / file) for file in ("alone.pt", "both.pt")]
    alone, both = run(program, files[0]), run(*TORCHRUN, program, files[1])
    assert [epoch for epoch, _ in alone] == [epoch for epoch, _ in both] == ["0", "1", "2"]  # rank 0 alone reports
    losses = [[float(loss) for _, loss in printed] for printed in (alone, both)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6, rel=0)
    assert losses[0][-1] < losses[0][0] / 2
    one, two = (torch.load(file) for file in files)
    assert one.keys() == two.keys()  # without DDP's wrapper
    assert all(type(tensor) is torch.Tensor for tensor in two.values())  # no shard, no DTensor
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name, mark", MARKS.items())
def test_every_line_that_one_device_would_not_need_is_marked(name, mark):
    text = (PROGRAMS / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert max(map(len, text.splitlines())) <= 100
    code = text.split('"""')[2]
    unmarked = [line for line in code.splitlines() if OF_SEVERAL.search(line.split("  #")[0]) and mark not in line]
    assert not unmarked, "\n".join(unmarked)
