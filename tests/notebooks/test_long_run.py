"""The program for long runs: interrupted, it goes on with any number of ranks, and with as many to the same bits."""

import os
import re
import runpy
import shutil
import signal
import sys

import pytest
import torch

from course_utils import launch
from course_utils import slurm as batch
from course_utils.launch import unannounced
from tests.helpers.slurm_cluster import wait_until
from tests.helpers.whole_checkpoint import whole
from tools import notebooks

PROGRAM = notebooks.NOTEBOOKS / "programs" / "long_run.py"
EXACT = {"rtol": 1e-9, "atol": 1e-12}  # in float64
# What a run without restarts has no word for.
OF_LONG_RUNS = re.compile(r"\b(dcp|samples|pending|folder|told|stop|stager|writers|signal|shutil)\b")


def run_program(program, folder, tell_at=0, gone=None):
    """In a worker: run it; with `tell_at`, rank 0 gets a SIGTERM in that step. Return how it exits.

    The folder `gone` must not be there in the first step: while one rank removes it, another's save may fail in it.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.argv, calls, step = [program, folder], [], torch.optim.AdamW.step

    def step_told(self, closure=None):  # also called once by `get_state_dict` where a run is resumed
        calls.append(None)
        assert len(calls) > 1 or not gone or not os.path.exists(os.path.join(folder, gone))
        if len(calls) == tell_at and os.environ["RANK"] == "0":
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, closure)

    torch.optim.AdamW.step = step_told
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(program, run_name="__main__")
    return ended.value.code


def run(program, folder, world_size, **how):
    with unannounced():
        return launch(run_program, str(program), str(folder), world_size=world_size, backend=None, **how).results


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of checkpoints of a run of four ranks, all of which have stayed."""
    folder = tmp_path_factory.mktemp("long")
    program = folder / "keeps_all.py"
    program.write_text(PROGRAM.read_text(encoding="utf-8").replace("KEEP = 5, 2", "KEEP = 5, 99"))
    assert run(program, folder / "run", 4) == [0] * 4
    return folder / "run"


def assert_same(ours, theirs):
    """Parameters and Adam's state; the random states are each rank's own."""
    ours, theirs = ({name: t for name, t in each.items() if not name.startswith("random")} for each in (ours, theirs))
    assert any(name.endswith("exp_avg_sq") for name in ours)
    torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_a_run_of_four_ranks_goes_on_with_any_number(num_ranks, undisturbed, tmp_path):
    shutil.copytree(undisturbed / "step_000025", tmp_path / "step_000025")
    (tmp_path / "step_000030").mkdir()  # one that was interrupted
    assert run(PROGRAM, tmp_path, num_ranks, gone="step_000030") == [0] * num_ranks
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000050", "step_000055", "step_000056"]
    assert_same(whole(tmp_path / "step_000056"), whole(undisturbed / "step_000056"))


def test_told_to_stop_it_saves_and_goes_on_to_the_same_bits_with_dropout(tmp_path):
    program = tmp_path / "with_dropout.py"
    program.write_text(PROGRAM.read_text(encoding="utf-8").replace("DROPOUT = 0.0", "DROPOUT = 0.1"))
    assert run(program, tmp_path / "whole", 2) == [0, 0]
    assert run(program, tmp_path / "told", 2, tell_at=17) == [143, 143]
    there = sorted(path.parent.name for path in (tmp_path / "told").glob("*/.metadata"))
    assert there == ["step_000010", "step_000015", "step_000017"]  # the last out of its turn
    assert run(program, tmp_path / "told", 2) == [0, 0]
    ours, theirs = (whole(tmp_path / name / "step_000056") for name in ("told", "whole"))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert any(name.startswith("random") for name in ours)


def test_its_batch_file_puts_it_back_into_the_queue_and_it_goes_on(slurm, tmp_path, undisturbed):
    slow = """samples += BATCH
    if samples == 17 * BATCH and not os.environ.get("SLURM_RESTART_COUNT"):
        import time
        Path(sys.argv[1] + f"_begun_{rank}").touch()
        while not told:
            time.sleep(0.01)
"""
    text = PROGRAM.read_text(encoding="utf-8")
    (tmp_path / "slow.py").write_text(text.replace("samples += BATCH\n", slow))
    job = batch.Job("fsdp", gpus_per_node=0, program="slow.py", resumes=True, arguments=("run",))
    (tmp_path / "job.sbatch").write_text(str(job))
    number = slurm.submit("job.sbatch", tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("run_begun_*"))) == 2, 200, "both ranks are in step 17")
    assert slurm.run("scancel", "--batch", "--signal=USR1", number).returncode == 0
    wait_until(
        lambda: slurm.state(number) == "PENDING" and not slurm.stepds(number), 60, "it waits again, and nothing runs"
    )
    there = sorted(path.parent.name for path in (tmp_path / "run").glob("*/.metadata"))
    assert there[-1] == "step_000017"
    assert slurm.run("scontrol", "update", f"JobId={number}", "StartTime=now+2").returncode == 0
    assert slurm.wait(number) == "COMPLETED", (tmp_path / f"fsdp-{number}.out").read_text()
    assert_same(whole(tmp_path / "run" / "step_000056"), whole(undisturbed / "step_000056"))


def test_ranks_that_cannot_share_a_batch_are_told_so():
    text = PROGRAM.read_text(encoding="utf-8")
    assert "BATCH % world_size and sys.exit(" in text


def test_it_is_short_and_marks_what_a_long_run_needs():
    text = PROGRAM.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110 and max(map(len, text.splitlines())) <= 100
    code = text.split('"""')[2]
    unmarked = [line for line in code.splitlines() if re.match("(import|from|def) ", line)
                and OF_LONG_RUNS.search(line.split("  #")[0]) and "LONG" not in line]  # fmt: skip
    assert not unmarked, "\n".join(unmarked)
