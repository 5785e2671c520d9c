"""SIGTERM: all ranks stop after the same step, whoever heard it, and the state is saved; under Slurm, too."""

import os
import re
import signal
import threading

import torch
import torch.distributed as dist

from course_utils import checkpoint, launch, train
from course_utils import slurm as batch
from course_utils.train import program, sharded
from course_utils.train.stopping import Stop, Stopped
from tests.helpers.slurm_cluster import ROOT, wait_until
from tests.helpers.whole_checkpoint import whole

COMMON = ("--batch-size", "96", "--model", "mlp", "--epochs", "2", "--precision", "fp64")
TOLD_AT = 17  # the step, from 1, in which a rank is told: the third of the second epoch


def train_until_told(rank, arguments):
    """In a worker: train; rank `rank` gets a SIGTERM in the middle of a step. Return what `main` raised."""
    learn, calls = program.EndToEnd.learn, []

    def learn_told(self, x, y):
        calls.append(None)
        if len(calls) == TOLD_AT and dist.get_rank() == rank:
            os.kill(os.getpid(), signal.SIGTERM)
        return learn(self, x, y)

    program.EndToEnd.learn = learn_told
    handler = signal.getsignal(signal.SIGTERM)
    try:
        train.main(arguments)
    except Stopped as stopped:
        return str(stopped), len(calls), signal.getsignal(signal.SIGTERM) == handler
    finally:
        program.EndToEnd.learn = learn


def test_all_ranks_stop_after_the_step_in_which_one_was_told(tmp_path):
    folders = {name: tmp_path / name for name in ("whole", "file", "sharded")}
    common = [*COMMON, "--strategy", "fsdp", "--checkpoint"]

    def train_all():
        train.main([*common, str(folders["whole"])])
        told = [
            train_until_told(1, [*common, str(folders["file"])]),
            train_until_told(0, [*common, str(folders["sharded"]), "--sharded"]),
        ]
        train.main([*common, str(folders["file"]), "--resume"])
        train.main([*common, str(folders["sharded"]), "--resume", "--sharded"])
        return told

    for told in launch(train_all, world_size=2):
        for said, num_steps, is_restored in told:
            assert re.match(r"SIGTERM: stopped after step 3 of epoch 1, which .* holds; the same command with", said)
            assert num_steps == TOLD_AT and is_restored
    there = sharded.complete(folders["sharded"])
    assert [path.name for path in there] == ["step_000028", "step_000017"]
    undisturbed, gone_on = (checkpoint.load(folders[name] / "last.pt")["model"] for name in ("whole", "file"))
    for name, tensor in undisturbed.items():
        assert torch.equal(gone_on[name], tensor) and torch.equal(whole(there[0])[f"model.{name}"], tensor)


def test_the_command_line_ends_with_143(tmp_path):
    """In a fork of a worker, for the sake of its warm imports."""

    def fork():
        if not (child := os.fork()):
            try:
                for name in ("RANK", "WORLD_SIZE"):
                    os.environ.pop(name, None)
                log = program.log
                log.__globals__["_channel"] = None  # as in a process that no launch has started
                learn = program.EndToEnd.learn

                def learn_told(self, x, y):
                    os.kill(os.getpid(), signal.SIGTERM)
                    return learn(self, x, y)

                program.EndToEnd.learn = learn_told
                program.sys.argv = ["train", *COMMON, "--checkpoint", str(tmp_path)]
                program.program()
            finally:
                os._exit(99)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert launch(fork, world_size=1, backend=None)[0] == 143
    assert checkpoint.load(tmp_path / "last.pt")["step"] == 1


def test_without_a_checkpoint_or_beside_the_main_thread_the_signal_keeps_its_meaning():
    before, found = signal.getsignal(signal.SIGTERM), []
    with Stop(False):
        assert signal.getsignal(signal.SIGTERM) == before

    def elsewhere():
        with Stop(True):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [before]
    with Stop(True) as stop:
        assert signal.getsignal(signal.SIGTERM) != before and not stop.agreed()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.agreed()
    assert signal.getsignal(signal.SIGTERM) == before


# ---- Slurm


def test_a_job_that_is_put_back_into_the_queue_ends_as_an_undisturbed_one(slurm, tmp_path):
    """The signal before the time limit makes the batch file requeue the job; Slurm then ends its step with SIGTERM."""
    begun = tmp_path / "begun"
    # It says that it trains, and then waits in each step until it is told to stop.
    (tmp_path / "slow.py").write_text(f"""
import os, pathlib, sys, time
sys.path.insert(0, {str(ROOT)!r})
from course_utils.train import program
learn, calls = program.EndToEnd.learn, []
def learn_slowly(self, x, y):
    calls.append(None)
    if len(calls) == 17 and not int(os.environ.get("SLURM_RESTART_COUNT", 0)):
        pathlib.Path({str(begun)!r}).touch()
        while not told():
            time.sleep(0.01)
    return learn(self, x, y)
def told():
    import signal
    return signal.getsignal(signal.SIGTERM).__self__.is_told
program.EndToEnd.learn = learn_slowly
program.program()
""")
    job = batch.Job("dp", arguments=(*COMMON, "--sharded"))
    (tmp_path / "job.sbatch").write_text(str(job).replace("-m course_utils.train", "slow.py"))
    number = slurm.submit("job.sbatch", tmp_path)
    wait_until(begun.exists, 100, "it trains")
    assert slurm.run("scancel", "--batch", "--signal=USR1", number).returncode == 0
    wait_until(
        lambda: slurm.state(number) == "PENDING" and not slurm.stepds(number), 60, "it waits again, and nothing runs"
    )
    folder = tmp_path / "checkpoints" / f"dp-{number}"
    assert [path.name for path in sharded.complete(folder)] == ["step_000017", "step_000014"]
    assert slurm.run("scontrol", "update", f"JobId={number}", "StartTime=now+2").returncode == 0
    assert slurm.wait(number) == "COMPLETED"
    printed = (tmp_path / f"dp-{number}.out").read_text()
    assert "train: SIGTERM: stopped after step 3 of epoch 1" in printed
    figures = train.main([*COMMON, "--strategy", "dp", "--checkpoint", str(tmp_path / "whole"), "--sharded"])
    assert f"epoch 1: loss {figures['loss']:.4f}" in printed
    ours, theirs = (sharded.complete(path)[0] for path in (folder, tmp_path / "whole"))
    # Not to the last bit: the batch file gives the job another number of threads.
    torch.testing.assert_close(whole(ours), whole(theirs), rtol=1e-9, atol=1e-12)
