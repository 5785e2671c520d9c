"""The programs beside the chapters run as a reader would run them and mark every line that one device would not need.

Torchrun itself starts ddp.py and elastic.py; `launch` makes its environment for the others.
"""

import difflib
import os
import re
import subprocess
import sys

import psutil
import pytest
import torch

from course_utils import launch
from course_utils.launch import unannounced
from tests.helpers.run_program import run_program
from tools import notebooks

PROGRAMS = notebooks.NOTEBOOKS / "programs"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
MARKS = {  # of what one device's program would not need
    "ddp.py": "# DDP",
    "elastic.py": "# DDP",
    "fsdp2.py": "# FSDP",
    "pipeline.py": "# PIPE",
    "tensor_parallel.py": "# TP",
    "horovod_digits.py": "# HVD",
}
# Of one device's program nothing speaks of these.
OF_SEVERAL = re.compile(
    r"\b(dist|rank|local_rank|world_size|num_local|env|sampler|os|device_ids|mesh|unit|fully_shard|options)\b"
    r"|\b(stage|schedule|tp|plan|parts)\b"
    r"|\bhvd\b|Distributed(Data|Sampler)|StateDict|get_model_state_dict|Pipeline|1F1B|DTensor"
)


def environment(**more):
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    }
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(notebooks.ROOT), env.get("PYTHONPATH")]))
    env["CUDA_VISIBLE_DEVICES"] = ""  # float64 on the CPU is what both can be held to
    return env | {"OMP_NUM_THREADS": "1"} | more  # as torchrun sets it


def run(*command):
    done = subprocess.run([sys.executable, *command], env=environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return re.findall(r"^epoch (\d+): loss (\S+)$", done.stdout, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What ddp.py prints and saves on two processes."""
    file = tmp_path_factory.mktemp("ddp") / "both.pt"
    return run(*TORCHRUN, str(PROGRAMS / "ddp.py"), str(file)), file


def test_every_program_is_tried():
    elsewhere = ["going_on.py", "long_run.py"]  # in tests/chapters/c18; test_long_run.py
    assert sorted([*MARKS, *elsewhere]) == sorted(path.name for path in PROGRAMS.glob("*.py"))


def run_forked(program, *arguments, world_size):
    """As `run`, in workers that need not import torch first."""
    with unannounced():
        done = launch(run_program, program, arguments, world_size == 1, world_size=world_size, backend=None)
    return re.findall(r"^epoch (\d+): loss (\S+)$", "".join(done.logs), flags=re.MULTILINE)


@pytest.mark.parametrize("name", [name for name in MARKS if name != "horovod_digits.py"])  # chapter 15 runs that one
def test_alone_and_together_a_program_ends_at_the_same_loss(name, tmp_path, undisturbed):
    program, files = str(PROGRAMS / name), [str(tmp_path / file) for file in ("alone.pt", "both.pt")]
    first = [[f"{file}.run"] if name == "elastic.py" else [] for file in files]  # its checkpoint
    alone = run_forked(program, *first[0], files[0], world_size=1)
    if name == "ddp.py":
        both, files[1] = undisturbed
    else:
        both = run_forked(program, *first[1], files[1], world_size=2)
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
    assert len(text.splitlines()) <= (80 if name == "elastic.py" else 60)
    assert max(map(len, text.splitlines())) <= 100
    code = text.split('"""')[2]
    unmarked = [line for line in code.splitlines() if OF_SEVERAL.search(line.split("  #")[0]) and mark not in line]
    assert not unmarked, "\n".join(unmarked)


# What a program without checkpoints has no word for.
OF_RESTARTS = re.compile(r"\b(checkpoint|path|done|state|subtotal)\b")


def test_every_line_of_the_elastic_program_that_a_restart_needs_is_marked():
    code = (PROGRAMS / "elastic.py").read_text(encoding="utf-8").split('"""')[2]
    lines = [line for line in code.splitlines() if OF_RESTARTS.search(line.split("  #")[0])]
    assert len(lines) >= 5 and not [line for line in lines if "ELASTIC" not in line]


def test_a_killed_worker_is_started_again_and_the_weights_are_those_of_the_program_without_checkpoints(
    tmp_path, undisturbed
):
    command = [
        sys.executable,
        *TORCHRUN,
        "--max-restarts",
        "1",
        str(PROGRAMS / "elastic.py"),
        *(str(tmp_path / n) for n in "ab"),
    ]
    env = environment(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")  # as elastic.py says
    agent = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    before, steps = None, []
    for line in agent.stdout:
        steps += [int(line.split()[1])] if line.startswith("step ") else []
        if before is None and steps == [5, 10]:
            psutil.Process(agent.pid).children()[0].kill()
            before, steps = steps, []
    assert agent.wait() == 0
    assert steps[0] > 5 and steps[-1] == 64, steps  # it does not begin anew
    plain, killed = torch.load(undisturbed[1]), torch.load(tmp_path / "b")
    assert plain.keys() == killed.keys()
    assert all(torch.equal(tensor, killed[name]) for name, tensor in plain.items())


def test_the_elastic_program_is_the_other_one_with_checkpoints():
    texts = [(PROGRAMS / name).read_text(encoding="utf-8").split('"""')[2] for name in ("ddp.py", "elastic.py")]
    plain, elastic = map(str.splitlines, texts)
    new = [line[2:] for line in difflib.ndiff(plain, elastic) if line.startswith("+ ")]
    assert [line for line in new if "ELASTIC" not in line and "sys.argv" not in line] == []
