"""Sharded checkpoints: killed at any moment the run goes on to the same bits, and on any number of ranks.

Workers come from `launch`, which starts them in a tenth of a second.
"""

import contextlib
import itertools
import os
import random
import re
import resource
import shutil
import signal
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_utils import WorkerError, launch, train
from course_utils.launch import unannounced
from course_utils.train import program, sharded
from tests.helpers.refusals import refusals
from tests.helpers.slurm_cluster import wait_until
from tests.helpers.whole_checkpoint import whole

EXACT = {"rtol": 1e-9, "atol": 1e-12}  # for float64
SAVED = ("--batch-size", "96", "--model", "mlp", "--precision", "fp64", "--sharded")
STEPS = 1437 // 96  # of an epoch
NUM_KILLS = int(os.environ.get("COURSE_KILLS", 12))


def train_in_ranks(*cases):
    """In workers: train once for each list of arguments; return what `main` returned."""
    return [train.main(case) for case in cases]


def newest(folder):
    return sharded.complete(folder)[0]


def assert_equal(ours, theirs):
    """To the last bit."""
    assert ours.keys() == theirs.keys() and ours
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


# ---- Any number of ranks


@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_a_run_of_four_ranks_goes_on_with_any_number(strategy, tmp_path):
    common = [*SAVED, "--strategy", strategy, "--epochs", "2", "--keep", "9"]
    arguments = [*common, "--save-every", "10", "--checkpoint", str(tmp_path / "whole")]
    launch(train_in_ranks, arguments, world_size=4)
    truth, place = whole(newest(tmp_path / "whole")), f"step_{STEPS + 10:06d}"  # in the second epoch
    assert any("momentum" in name for name in truth)
    for num_ranks in (1, 2, 3):
        folder = tmp_path / str(num_ranks)
        shutil.copytree(tmp_path / "whole" / place, folder / place)
        run = launch(train_in_ranks, [*common, "--checkpoint", str(folder), "--resume", "auto"], world_size=num_ranks)
        assert f"4 processes saved the checkpoint and {num_ranks} go on: equal up to rounding" in run.logs[0]
        torch.testing.assert_close(whole(newest(folder)), truth, **EXACT)


def test_every_strategy_resumes_to_the_same_bits_and_only_its_newest_stay(tmp_path):
    def train_twice(strategy, folder):
        common = [*SAVED, "--strategy", strategy, "--save-every", "4", "--checkpoint"]
        train.main([*common, f"{folder}/whole", "--epochs", "2", "--save-mb-per-s", "1e-6"])  # hours, unless hurried
        train.main([*common, f"{folder}/twice", "--epochs", "1"])
        train.main([*common, f"{folder}/twice", "--epochs", "2", "--resume"])

    strategies = ("ddp", "fsdp", "tensor", "pipeline")
    launch(lambda: [train_twice(name, str(tmp_path / name)) for name in strategies], world_size=2)
    train_twice("single", str(tmp_path / "single"))
    for name in (*strategies, "single"):
        there = sharded.complete(tmp_path / name / "twice")
        assert [path.name for path in there] == [f"step_{n:06d}" for n in (2 * STEPS, STEPS + 12)]
        assert sorted(there) == sorted((tmp_path / name / "twice").iterdir())
        assert_equal(whole(there[0]), whole(newest(tmp_path / name / "whole")))
        assert len(list(there[0].glob("*.distcp"))) == (1 if name == "single" else 2)  # each rank wrote


# ---- Killed


def train_noting(arguments, folder):
    """In a worker: train, and note in files who this is, where the run begins, and the images of each step."""
    rank = dist.get_rank()
    Path(folder, f"pid_{rank}.new").write_text(str(os.getpid()))
    os.replace(Path(folder, f"pid_{rank}.new"), Path(folder, f"pid_{rank}"))
    notes = os.open(Path(folder, f"notes_{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    chosen, resume = program.Run.chosen, program.state.resume

    def chosen_noted(self, order, step):
        mine = chosen(self, order, step)
        os.write(notes, f"{self.epoch} {step} {' '.join(map(str, mine.tolist()))}\n".encode())
        return mine

    def resume_noted(run):
        resume(run)
        os.write(notes, f"from {run.epoch} {run.step}\n".encode())

    program.Run.chosen, program.state.resume = chosen_noted, resume_noted
    return train.main(arguments)


def seen(folder, rank):
    """{(epoch, step): images} that the parameters at the end come from: what was redone counts once."""
    found = {}
    for line in Path(folder, f"notes_{rank}").read_text().splitlines():
        if line.startswith("from"):
            begin = tuple(map(int, line.split()[1:]))
            found = {place: images for place, images in found.items() if place < begin}
        else:
            epoch, step, *images = map(int, line.split())
            assert (epoch, step) not in found
            found[epoch, step] = images
    return found


def unfinished(folder):
    with contextlib.suppress(OSError):
        return [path for path in folder.glob("step_*") if not (path / sharded.TABLE).exists()]
    return []


def kill_both(folder, checkpoints, moment, delay_s):
    """Kill the two workers from outside, `delay_s` after they have started, or have saved once; or in the next save.

    For that, both are first stopped, so that what is then unfinished stays so; return whether something was.
    """
    before = sharded.complete(checkpoints)[:1]
    pids = [folder / f"pid_{rank}" for rank in range(2)]
    wait_until(lambda: all(pid.exists() for pid in pids), 100, "both ranks are there")
    both = [int(pid.read_text()) for pid in pids]
    if moment != "start":
        wait_until(lambda: sharded.complete(checkpoints)[:1] != before, 100, "they have saved")
    threading.Event().wait(delay_s)
    is_in_save = False
    with contextlib.suppress(ProcessLookupError):  # the run is over
        while moment == "save" and not is_in_save:
            wait_until(lambda: unfinished(checkpoints) or not alive(both), 100, "they save")
            for pid in both:
                os.kill(pid, signal.SIGSTOP)
            if not (is_in_save := bool(unfinished(checkpoints))):
                for pid in both:
                    os.kill(pid, signal.SIGCONT)
        for pid in both:
            os.kill(pid, signal.SIGKILL)
    return is_in_save


def alive(pids):
    return all(os.path.exists(f"/proc/{pid}") for pid in pids)


def launch_and_kill(arguments, folder, checkpoints, moment, delay_s):
    """Launch two workers and kill them; return whether a save was under way."""
    for pid in folder.glob("pid_*"):
        pid.unlink()
    found = []
    killer = threading.Thread(target=lambda: found.append(kill_both(folder, checkpoints, moment, delay_s)))
    killer.start()
    with unannounced(), pytest.raises(WorkerError, match="killed"):
        launch(train_noting, arguments, str(folder), world_size=2)
    killer.join()
    return found[0]


def test_killed_at_any_moment_it_goes_on_to_the_same_bits_and_sees_each_image_once(tmp_path):
    """Twelve kills, half of them in the middle of a save; COURSE_KILLS=50 for more."""
    draw, epochs = random.Random(0), 1 + NUM_KILLS // 10
    common = [*SAVED, "--model", "digits", "--batch-size", "48", "--strategy", "ddp", "--epochs", str(epochs)]
    truth, folder = tmp_path / "whole", tmp_path / "killed"
    checkpoints = folder / "checkpoints"
    folder.mkdir()
    launch(train_in_ranks, [*common, "--checkpoint", str(truth)], world_size=2)
    arguments = [*common, "--save-every", "1", "--checkpoint", str(checkpoints), "--resume", "auto"]
    in_saves = 0
    for moment in itertools.islice(itertools.cycle(("save", "step", "save", "start")), NUM_KILLS):
        in_saves += launch_and_kill(arguments, folder, checkpoints, moment, draw.uniform(0, 0.05))
        for path in sharded.complete(checkpoints)[:1]:
            whole(path)  # it can be read
    assert in_saves == (NUM_KILLS + 1) // 2
    begun = re.findall(r"from (\d+) (\d+)", Path(folder, "notes_0").read_text())
    assert len(set(begun)) > NUM_KILLS / 4  # it did get on between kills
    launch(train_noting, arguments, str(folder), world_size=2)
    assert_equal(whole(newest(checkpoints)), whole(newest(truth)))
    assert sorted(checkpoints.iterdir()) == sorted(sharded.complete(checkpoints))  # nothing half done is left
    both = [seen(folder, rank) for rank in range(2)]
    for epoch in range(epochs):
        images = [image for found in both for place, its in found.items() if place[0] == epoch for image in its]
        assert len(images) == len(set(images)) == 1437 // 48 * 48


def samples_of_epochs(*parts):
    """{epoch: images}, of [(folder, number of ranks, steps to count as (epoch, step) -> bool)], in any order."""
    found = {}
    for folder, num_ranks, counts in parts:
        for rank in range(num_ranks):
            for place, images in seen(folder, rank).items():
                if counts(place):
                    found.setdefault(place[0], []).extend(images)
    return found


@pytest.mark.parametrize("before, after", [(2, 4), (1, 4), (4, 2)])
def test_on_more_ranks_or_fewer_each_sample_of_an_epoch_still_counts_once(before, after, tmp_path):
    common = [*SAVED, "--strategy", "ddp", "--epochs", "2"]
    place = 1, 10  # in the second epoch
    first, second, whole_run, resumed = (tmp_path / name for name in ("first", "second", "whole", "resumed"))
    first.mkdir()
    second.mkdir()
    arguments = [*common, "--save-every", "10", "--keep", "9", "--checkpoint", str(whole_run)]
    launch(train_noting, arguments, str(first), world_size=before)
    name = f"step_{STEPS + 10:06d}"
    shutil.copytree(whole_run / name, resumed / name)
    arguments = [*common, "--checkpoint", str(resumed), "--resume", "auto"]
    launch(train_noting, arguments, str(second), world_size=after)
    assert set(seen(second, after - 1)) == {(1, step) for step in range(10, STEPS)}
    counted = samples_of_epochs((first, before, lambda at: at < place), (second, after, lambda at: True))
    for images in (counted[0], counted[1]):
        assert len(images) == len(set(images)) == STEPS * 96
    torch.testing.assert_close(whole(newest(resumed)), whole(newest(whole_run)), **EXACT)


# ---- What cannot be saved or loaded


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The arguments and the folder of an epoch on two ranks, with two checkpoints."""
    folder = tmp_path_factory.mktemp("saved")
    common = [*SAVED, "--strategy", "fsdp", "--epochs", "1", "--save-every", "8", "--checkpoint"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("COURSE_DEVICE", "cpu")
        launch(train_in_ranks, [*common, str(folder)], world_size=2)
    return common, folder


def damage(path):
    (path / "__1_0.distcp").unlink()


def test_a_damaged_checkpoint_is_passed_over_and_two_are_refused(saved, tmp_path):
    common, folder = saved
    one, two, table = (shutil.copytree(folder, tmp_path / name) for name in ("one", "two", "table"))
    for path in (sharded.complete(one)[0], *sharded.complete(two)):
        damage(path)
    (sharded.complete(table)[0] / sharded.TABLE).write_text("no table")
    cases = [[*common, str(path), "--resume", "--epochs", "2"] for path in (one, two, table)]
    run = launch(refusals, *cases, world_size=2)
    for first, second, third in run:
        assert first.startswith("it was taken") and third.startswith("it was taken")
        assert re.search(r"step_000014 cannot be loaded: No such file or directory __1_0.distcp \(rank \d\)$", second)
    assert run.logs[0].count("; step_000008 is taken") == 2 and not run.logs[1]
    ours = [whole(newest(path)) for path in (one, table)]
    assert_equal(*ours)


def test_a_full_disk_is_one_sentence_on_all_ranks_and_what_was_saved_stays(saved, tmp_path):
    common, folder = saved
    copy = shutil.copytree(folder, tmp_path / "copy")
    before = whole(newest(copy))

    def fill_the_disk(arguments):
        if dist.get_rank() == 1:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        return refusals(arguments)

    for (said,) in launch(fill_the_disk, [*common, str(copy), "--resume", "--epochs", "2"], world_size=2):
        assert re.search(r"a checkpoint in .* could not be saved: .*File too large.* \(rank 1\)", said)
        assert "\n" not in said
    assert_equal(whole(newest(copy)), before)
    assert len(sharded.complete(copy)) == 2


def test_one_kind_of_checkpoint_is_not_hidden_by_the_other(saved, tmp_path):
    common, folder = saved
    plain = [word for word in common if word != "--sharded"]
    launch(train_in_ranks, [*plain, str(tmp_path)], world_size=2)
    cases = [*plain, str(folder), "--resume", "auto"], [*common, str(tmp_path), "--resume", "auto"]
    for first, second in launch(refusals, *cases, world_size=2):
        assert re.search("step_000014 was saved with --sharded: give it, or name another --checkpoint folder", first)
        assert re.search("last.pt was saved without --sharded: leave it out, or name another", second)


def test_of_what_is_being_removed_nothing_looks_complete(tmp_path, monkeypatch):
    """Where a kill interrupts the removal, the table is gone already."""
    for number in (1, 2, 3, 9):
        path = tmp_path / f"step_{number:06d}"
        path.mkdir()
        if number != 2:
            (path / sharded.TABLE).touch()
    monkeypatch.setattr(sharded.shutil, "rmtree", lambda *_, **__: None)  # killed before it
    sharded.prune(tmp_path, 1, 3)
    assert [path.name for path in sharded.complete(tmp_path)] == ["step_000009", "step_000003"]
    monkeypatch.undo()
    sharded.prune(tmp_path, 1, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000003", "step_000009"]
