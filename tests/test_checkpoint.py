"""Checkpoints are whole whatever happens, and continue a run bit for bit.

What must happen in processes of its own (kills, a full disk, a fresh start) runs in forks of one server, this file run
as a program: forking costs milliseconds where importing torch costs seconds.
"""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_utils import checkpoint
from course_utils.checkpoint import CheckpointError
from course_utils.data import batches

NUM_KILLS = 50


@pytest.fixture(scope="module")
def forked():
    """`forked(function, *arguments)` runs a function of this file in a new process and returns its result."""
    server = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(function, *arguments):
        server.stdin.write(json.dumps([function.__name__, *map(str, arguments)]) + "\n")
        server.stdin.flush()
        answer = json.loads(server.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["result"]

    yield call
    server.stdin.close()
    assert server.wait(timeout=60) == 0


def serve():
    torch.set_num_threads(1)  # a fork has none of its parent's threads, and would wait for them
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        reading, writing = os.pipe()
        if not (child := os.fork()):
            try:
                answer = {"result": globals()[name](*map(Path, arguments))}
            except BaseException as error:  # it must not become a second server
                answer = {"error": repr(error)}
            os.write(writing, json.dumps(answer).encode())
            os._exit(0)
        os.close(writing)
        with open(reading) as pipe:
            print(pipe.read() or '{"error": "killed"}', flush=True)
        os.waitpid(child, 0)


def fork(work):
    """Run `work()` in a new process; return its id."""
    if child := os.fork():
        return child
    code = 1
    try:
        code = work() or 0
    finally:
        os._exit(code)


# Killed while saving


def filled(step, size=500_000):
    """A model of 2 MB whose every weight is `step`."""
    model = nn.utils.skip_init(nn.Linear, size, 1, bias=False)
    nn.init.constant_(model.weight, step)
    return model


def saved_step(path):
    """The step in the checkpoint at `path`, whose weights must be of that step too."""
    model = filled(-1)
    step = checkpoint.load(path, model=model)["step"]
    assert (model.weight == step).all(), f"{path.name} says step {step} and holds other weights"
    return step


def good_steps(path):
    steps = []
    for file in (path, path.with_name(path.name + ".previous")):
        try:
            steps.append(saved_step(file))
        except CheckpointError:
            steps.append(None)
    return steps


def kill_at_random_moments(folder):
    path = folder / "last.pt"
    completed = folder.parent / "completed"
    done = os.open(completed, os.O_RDWR | os.O_CREAT)
    os.pwrite(done, b"%8d" % 0, 0)
    checkpoint.save(path, model=filled(0), step=0)


    def save_on_and_on():
        step = int(os.pread(done, 8, 0))
        model = filled(step)
        while True:
            step += 1
            nn.init.constant_(model.weight, step)
            checkpoint.save(path, model=model, step=step)
            os.pwrite(done, b"%8d" % step, 0)
            os.write(has_saved, b".")

    cut_short = 0
    for _ in range(NUM_KILLS):
        waiting, has_saved = os.pipe()
        child = fork(save_on_and_on)
        os.read(waiting, 1)
        time.sleep(random.uniform(0, 0.03))  # the random moment; a save takes about 10 ms
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(waiting), os.close(has_saved)
        cut_short += any(file.suffix == ".part" for file in folder.iterdir())
        last = int(os.pread(done, 8, 0))
        newest, previous = good_steps(path)
        # One more may be in place whose step was not written down.
        assert newest in (last, last + 1), f"step {last} was saved, and there are {newest} and {previous}"
        # The one before that, if it was killed just after the newest had got its name.
        assert previous in (newest - 1, newest - 2) or newest == 1, (newest, previous)
        os.pwrite(done, b"%8d" % newest, 0)
    checkpoint.save(path, model=filled(7), step=7)
    return {"steps": last, "cut short": cut_short, "left": sorted(os.listdir(folder))}


def test_killed_at_random_moments(forked, tmp_path):
    (tmp_path / "run").mkdir()
    found = forked(kill_at_random_moments, tmp_path / "run")
    assert found["steps"] >= NUM_KILLS and found["cut short"] > 5, f"the kills did not meet saves: {found}"
    assert found["left"] == ["last.pt", "last.pt.previous"], "what killed saves left was not removed"


STEPS = ("open", "os.link", "os.rename", "os.remove")


def die_before_each_step(folder):
    """Save as step 2 over step 1 (with 0 before), dying before the n-th thing that is done to the folder's files."""
    path = folder / "last.pt"
    found = []
    for n in range(1, 20):
        for file in folder.iterdir():
            file.unlink()
        for step in (0, 1):
            checkpoint.save(path, model=filled(step, 1000), step=step)

        def save_and_die():
            seen = 0

            def note(event, arguments):
                nonlocal seen
                if event in STEPS and str(folder) in str(arguments[0]):
                    seen += 1
                    if seen == n:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(note)
            checkpoint.save(path, model=filled(2, 1000), step=2)

        _, status = os.waitpid(fork(save_and_die), 0)
        steps = []
        for file in (path, path.with_name("last.pt.previous")):
            model = filled(-1, 1000)
            steps.append(checkpoint.load(file, model=model)["step"])
            assert (model.weight == steps[-1]).all()
        found.append(steps)
        if not os.WIFSIGNALED(status):
            return found
    return found


def test_killed_before_each_step_of_a_save(forked, tmp_path):
    found = forked(die_before_each_step, tmp_path)
    assert len(found) > 4 and [1, 0] in found and found[-1] == [2, 1], found
    assert all(steps in ([1, 0], [2, 0], [2, 1]) for steps in found), found


def save_side_by_side(folder):
    path = folder / "last.pt"

    def save_twenty():
        for step in range(20):
            checkpoint.save(path, model=filled(step, 50_000), step=step)

    children = [fork(save_twenty) for _ in range(3)]
    return [os.waitpid(child, 0)[1] for child in children], sorted(os.listdir(folder)), good_steps_small(path)


def good_steps_small(path):
    model = filled(-1, 50_000)
    step = checkpoint.load(path, model=model)["step"]
    return bool((model.weight == step).all())


def test_processes_that_save_to_the_same_path(forked, tmp_path):
    """As when every rank saves: useless, but neither fails nor damages anything."""
    assert forked(save_side_by_side, tmp_path) == [[0, 0, 0], ["last.pt", "last.pt.previous"], True]


def save_what_another_takes_for_a_leftover(folder):
    """Another save may remove the new file in the moment before it is locked."""
    def note(event, arguments):
        if event == "fcntl.flock":
            for part in list(folder.glob(".*.part"))[:removals.pop() if removals else 0]:
                part.unlink()

    removals = [1]
    sys.addaudithook(note)
    checkpoint.save(folder / "last.pt", model=filled(1), step=1)
    return saved_step(folder / "last.pt"), removals, os.listdir(folder)


def test_a_new_file_that_another_save_removes(forked, tmp_path):
    assert forked(save_what_another_takes_for_a_leftover, tmp_path) == [1, [], ["last.pt"]]


# Where the disk or the folder refuses


def refused(path):
    """What a save of step 2 over step 1 says, what is in the folder then, and the step that `path` still holds."""
    checkpoint.save(path, model=filled(1), step=1)
    before = sorted(os.listdir(path.parent))

    def attempt():
        try:
            checkpoint.save(path, model=filled(2), step=2)
        except CheckpointError as error:
            return str(error)

    return attempt, before


def fill_the_disk(folder):
    attempt, before = refused(folder / "last.pt")
    said = []
    for limit in (0, 100, 500_000, 1_999_000):  # at the beginning, in the weights, near the end
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        said.append(attempt())
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert sorted(os.listdir(folder)) == before and saved_step(folder / "last.pt") == 1
    return said


def test_a_full_disk(forked, tmp_path):
    said = forked(fill_the_disk, tmp_path)
    assert said == [f"{tmp_path}/last.pt could not be saved: File too large; "
                    "the checkpoint saved before is untouched"] * 4


def save_where_nothing_may_be_written(folder):
    os.chdir(folder)
    attempt, before = refused(Path("last.pt"))
    folder.chmod(0o555)
    become_nobody()
    said = attempt()
    assert sorted(os.listdir()) == before and saved_step(Path("last.pt")) == 1
    return said


def become_nobody():
    if os.geteuid() == 0:  # root may write anywhere
        os.setgroups([])
        os.setegid(65534)
        os.seteuid(65534)


def test_a_folder_that_is_read_only(forked, tmp_path):
    assert forked(save_where_nothing_may_be_written, tmp_path) == \
        "last.pt could not be saved: Permission denied; the checkpoint saved before is untouched"


def save_without_hard_links(folder):
    os.chdir(folder)
    folder.chmod(0o777)
    path = Path("last.pt")
    for step in (0, 1):
        checkpoint.save(path, model=filled(step), step=step)
    become_nobody()  # Linux refuses links to files of others (protected_hardlinks)
    try:
        os.link(path, "link")
    except PermissionError:
        checkpoint.save(path, model=filled(2), step=2)
        return good_steps(path), sorted(os.listdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user to whom hard links are refused")
def test_where_there_are_no_hard_links(forked, tmp_path):
    found = forked(save_without_hard_links, tmp_path)
    if found is None:
        pytest.skip("this system refuses no hard links")
    assert found == [[2, 1], ["last.pt", "last.pt.previous"]]


@pytest.mark.parametrize("name, said", [
    ("absent/last.pt", "there is no folder .*absent; make it first"),
    ("file/last.pt", "there is no folder .*file; make it first"),
    ("folder", "is a folder: give the name of a file in it"),
])
def test_a_path_that_cannot_be(tmp_path, name, said):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=said):
        checkpoint.save(tmp_path / name, epoch=1)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


# Continuing


def train(path, stop_after=None, seed=0):
    """Twelve steps with all that may be saved; a checkpoint every fifth. Returns every number of the run's end."""
    for draw in (torch.manual_seed, np.random.seed, random.seed):
        draw(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Dropout(0.3), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=12)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    images, labels = torch.rand(6 * 16, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(96) % 10
    epoch, done, losses = 0, 0, []
    if path.exists():
        values = checkpoint.load(path, **parts)
        epoch, done, losses = values["epoch"], values["batch"], values["losses"]
    while len(losses) < 12:
        for batch, (x, y) in enumerate(batches(images, labels, 16, epoch=epoch)):
            if batch < done:
                continue
            x = x * random.uniform(0.9, 1.1) + torch.from_numpy(np.random.normal(0, 0.1, x.shape)).float()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            losses.append(loss.item())
            if len(losses) % 5 == 0:
                checkpoint.save(path, **parts, epoch=epoch, batch=batch + 1, losses=losses)
            if len(losses) == stop_after:
                os.kill(os.getpid(), signal.SIGKILL)
        epoch, done = epoch + 1, 0
    numbers = [losses, scheduler.get_last_lr(), scaler.get_scale(), random.random(), np.random.rand(), torch.rand(1)]
    tensors = list(model.state_dict().values()) + [t for s in optimizer.state.values() for t in s.values()]
    return [repr(n) for n in numbers] + [t.tolist() for t in tensors]


def train_at_once(folder):
    return train(folder / "straight.pt")


def train_and_be_killed(folder):
    child = fork(lambda: train(folder / "last.pt", stop_after=8))
    return os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def train_on(folder):
    return train(folder / "last.pt", seed=999)


def test_a_resumed_run_is_the_same_bit_for_bit(forked, tmp_path):
    straight = forked(train_at_once, tmp_path)
    assert forked(train_and_be_killed, tmp_path)
    assert forked(train_on, tmp_path) == straight
    # That it hangs on all of it: with one thing less the end is another.
    path = tmp_path / "last.pt"
    for lost in ("python", "numpy", "torch"):
        content = torch.load(path.with_name("last.pt.previous"), weights_only=True)
        content["random"][lost] = checkpoint._random_states()[lost]
        torch.save(content, path)
        assert forked(train_on, tmp_path) != straight, f"the random state of {lost} made no difference"


@pytest.mark.parametrize("make", [
    lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 3]),
    lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o),
    lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.StepLR(o, 2)], [2]),
], ids=["MultiStep", "Plateau", "Lambda", "Sequential"])
@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_optimizers_and_schedulers_come_back(tmp_path, make, optimizer_class):
    def parts():
        model = nn.Linear(3, 2)
        optimizer = optimizer_class([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}], lr=0.1)
        return {"model": model, "optimizer": optimizer, "scheduler": make(optimizer)}

    saved, here = parts(), parts()
    step(saved)
    checkpoint.save(tmp_path / "a.pt", **saved)
    checkpoint.load(tmp_path / "a.pt", **here)
    assert everything(here) == everything(saved)
    step(saved), step(here)
    assert everything(here) == everything(saved)


def step(parts):
    parts["optimizer"].zero_grad()
    parts["model"](torch.ones(4, 3)).sum().backward()
    parts["optimizer"].step()
    parts["scheduler"].step(*[1.0] * isinstance(parts["scheduler"], torch.optim.lr_scheduler.ReduceLROnPlateau))


def everything(objects):
    """All states of all objects, and the random states, as text that differs where a bit does."""
    torch.set_printoptions(profile="full", precision=17)
    try:
        return repr([thing.state_dict() for thing in objects.values()] + [checkpoint._random_states()])
    finally:
        torch.set_printoptions(profile="default")


def test_what_is_no_ordinary_file_stays(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="pipe is no ordinary file"):
        checkpoint.save(tmp_path / "pipe", epoch=1)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


if __name__ == "__main__":
    serve()
