"""Checkpoints are whole whatever happens, continue a run bit for bit, and refuse what does not fit.

What must happen in processes of its own (kills, a full disk, a fresh start) runs in forks of one server, this file run
as a program: forking costs milliseconds where importing torch costs seconds.
"""

import io
import json
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
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


def test_the_folder_is_flushed_after_the_new_name_is_in_it(tmp_path, monkeypatch):
    """Otherwise a power failure, which no test can cause, may bring the old file back."""
    path, flushed, fsync = tmp_path / "run.pt", [], os.fsync

    def noted(descriptor):
        fsync(descriptor)
        flushed.append((os.fstat(descriptor).st_ino, path.exists() and path.stat().st_ino))

    monkeypatch.setattr(os, "fsync", noted)
    for step in range(2):
        checkpoint.save(path, step=step)
        assert flushed[-1] == (tmp_path.stat().st_ino, path.stat().st_ino)


def test_processes_that_save_to_the_same_path(forked, tmp_path):
    """As when every rank saves: useless, but neither fails nor damages anything."""
    assert forked(save_side_by_side, tmp_path) == [[0, 0, 0], ["last.pt", "last.pt.previous"], True]


def save_what_another_takes_for_a_leftover(folder):
    """Another save may remove the new file in the moment before it is locked."""

    def note(event, arguments):
        if event == "fcntl.flock":
            for part in list(folder.glob(".*.part"))[: removals.pop() if removals else 0]:
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
    assert (
        said == [f"{tmp_path}/last.pt could not be saved: File too large; the checkpoint saved before is untouched"] * 4
    )


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
    assert (
        forked(save_where_nothing_may_be_written, tmp_path)
        == "last.pt could not be saved: Permission denied; the checkpoint saved before is untouched"
    )


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


@pytest.mark.parametrize(
    "name, said",
    [
        ("absent/last.pt", "there is no folder .*absent; make it first"),
        ("file/last.pt", "there is no folder .*file; make it first"),
        ("folder", "is a folder: give the name of a file"),
    ],
)
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


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 3]),
        lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o, [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.StepLR(o, 2)], [2]
        ),
    ],
    ids=["MultiStep", "Plateau", "Lambda", "Sequential"],
)
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


# What is no checkpoint, or one of something else


def make_net(hidden=4, dtype=torch.float32, extra=False):
    layers = [nn.Linear(3, hidden, dtype=dtype), nn.ReLU(), nn.Linear(hidden, 2, dtype=dtype)]
    return nn.Sequential(*layers, *[nn.Linear(2, 2)] * extra)


def make_parts(model=None, optimizer=torch.optim.Adam, scheduler=torch.optim.lr_scheduler.ExponentialLR):
    model = model or make_net()
    optimizer = optimizer(model.parameters())
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler(optimizer, 1)}


def in_two_groups(parameters):
    weights, biases = (list(group) for group in (list(parameters)[::2], list(parameters)[1::2]))
    return torch.optim.Adam([{"params": weights}, {"params": biases}])


def of_the_first(parameters):
    return torch.optim.Adam([next(parameters)])


@pytest.mark.parametrize(
    "saved, here, said",
    [
        (dict(model=make_net(5)), {}, r"model refused its state .*size mismatch for 0.weight: .*\[5, 3\].*\[4, 3\]"),
        (
            dict(model=make_net(dtype=torch.float64)),
            {},
            "refused its state .0.weight was torch.float64 and is torch.float32",
        ),
        (
            dict(model=make_net(extra=True)),
            {},
            r"model refused its state .*Unexpected key\(s\) in state_dict: .3.weight",
        ),
        ({}, dict(model=make_net(extra=True)), r"model refused its state .*Missing key\(s\) in state_dict: .3.weight"),
        (dict(optimizer=torch.optim.SGD), {}, "optimizer was SGD and is Adam here"),
        (dict(optimizer=in_two_groups), {}, "optimizer refused its state .*a different number of parameter groups"),
        (dict(optimizer=of_the_first), {}, "optimizer refused its state .*doesn't match the size of optimizer's group"),
        (dict(scheduler=torch.optim.lr_scheduler.StepLR), {}, "scheduler was StepLR and is ExponentialLR here"),
        (dict(scheduler=lambda optimizer, gamma: make_net()), {}, "scheduler was a model and is ExponentialLR here"),
    ],
)
def test_a_checkpoint_of_something_else_changes_nothing(tmp_path, saved, here, said):
    checkpoint.save(tmp_path / "a.pt", **make_parts(**saved))
    parts = make_parts(**here)
    before = everything(parts)
    with pytest.raises(CheckpointError, match=f"{said}.*; nothing was changed$") as caught:
        checkpoint.load(tmp_path / "a.pt", **parts)
    assert everything(parts) == before and "\n" not in str(caught.value)


class Sampler:
    def __init__(self, position, refuses=False):
        self.position, self.refuses = position, refuses

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        random.random()
        if self.refuses and state["position"] != self.position:
            raise ValueError("I stay where I am")
        self.position = state["position"]


def test_a_refusal_at_the_end_changes_nothing(tmp_path):
    saved = make_parts() | {"sampler": Sampler(7)}
    saved["model"](torch.ones(1, 3)).sum().backward()
    saved["optimizer"].step()
    checkpoint.save(tmp_path / "a.pt", **saved)
    parts = make_parts() | {"sampler": Sampler(0, refuses=True)}
    parts["model"](torch.ones(1, 3)).sum().backward()
    parts["optimizer"].step()
    before = everything(parts)
    with pytest.raises(CheckpointError, match=r"sampler refused its state \(I stay where I am\); nothing was changed"):
        checkpoint.load(tmp_path / "a.pt", **parts)
    assert everything(parts) == before
    checkpoint.load(tmp_path / "a.pt", **parts | {"sampler": Sampler(0)})
    assert everything(parts | {"sampler": Sampler(7)}) == everything(saved)


class Bomb:
    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def spoil(path, how):
    """Make another thing of the good checkpoint at `path`."""
    whole = path.read_bytes()
    bomb = Bomb()
    bomb.path = path.with_name("exploded")
    if how == "object":
        return torch.save({"model": bomb}, path)
    if how == "state_dict":
        return torch.save(make_net().state_dict(), path)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("word/document.xml", "<w/>")
    weight = whole.index(make_net.sample.detach().numpy().tobytes()) if how == "bit" else 0
    path.write_bytes(
        {
            "empty": b"",
            "text": b"epoch 3\n",
            "pickle": pickle.dumps(bomb),
            "zip": archive.getvalue(),
            "half": whole[: len(whole) // 2],
            "short": whole[:-1],
            "begun": whole[:10],
            "bit": whole[: weight + 5] + bytes([whole[weight + 5] ^ 1]) + whole[weight + 6 :],
            "hole": whole[:1000] + bytes(500) + whole[1500:],
        }[how]
    )


@pytest.mark.parametrize(
    "how, said",
    [
        ("empty", "is truncated or damaged"),
        ("text", "is truncated or damaged"),
        ("pickle", "is truncated or damaged"),
        ("zip", "is truncated or damaged"),
        ("half", "is truncated or damaged"),
        ("short", "is truncated or damaged"),
        ("begun", "is truncated or damaged"),
        ("bit", "is truncated or damaged .the checksum of its part data/"),
        ("hole", "is truncated or damaged"),
        ("object", "loading those could run code"),
        ("state_dict", r"something else that torch.save wrote: torch.load\(path, weights_only=True\) reads it"),
        ("missing", "there is no checkpoint"),
        ("folder", "cannot be read: Is a directory"),
    ],
)
def test_a_file_that_is_no_checkpoint(tmp_path, how, said):
    path = tmp_path / "last.pt"
    saved = make_parts()
    make_net.sample = saved["model"][0].weight
    checkpoint.save(path, **saved, epoch=1)
    checkpoint.save(path, **saved, epoch=2)
    if how in ("missing", "folder"):
        path.unlink()
    if how == "folder":
        path.mkdir()
    elif how != "missing":
        spoil(path, how)
    parts = make_parts()
    before = everything(parts)
    with pytest.raises(CheckpointError, match=f"last.pt.*{said}|{said}.*last.pt") as caught:
        checkpoint.load(path, **parts)
    assert "\n" not in str(caught.value)
    assert f"the checkpoint before it is good: load {path}.previous" in str(caught.value)
    assert everything(parts) == before
    assert checkpoint.load(f"{path}.previous", **parts)["epoch"] == 1
    assert everything(parts) == everything(saved)
    # Without a good one beside it, none is promised.
    (tmp_path / "last.pt.previous").write_text("no checkpoint either")
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(path, **parts)
    assert "previous" not in str(caught.value)
    assert not (tmp_path / "exploded").exists()


def test_no_flipped_bit_is_loaded(tmp_path):
    path = tmp_path / "a.pt"
    saved = make_parts()
    checkpoint.save(path, **saved, note="x" * 50)
    whole, want = path.read_bytes(), everything(saved)
    draw = random.Random(0)
    for _ in range(150):
        spoiled = bytearray(whole)
        spoiled[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(spoiled)
        parts = make_parts()
        try:
            values = checkpoint.load(path, **parts)
        except CheckpointError:
            continue
        assert everything(parts) == want and values == {"note": "x" * 50}  # the bit was in the padding


@pytest.mark.parametrize(
    "given, said",
    [
        (dict(model=make_net()), r"also holds optimizer, scheduler: give load optimizer=…, or optimizer=None"),
        (dict(make_parts(), scaler=torch.amp.GradScaler("cpu")), "scheduler; there is no state for scaler in it"),
        (dict(make_parts(), epoch=1), "there is no state for epoch in it"),
        (dict(make_parts(), sampler=Sampler(0)), "there is no state for sampler in it"),
    ],
)
def test_names_that_do_not_match(tmp_path, given, said):
    checkpoint.save(tmp_path / "a.pt", **make_parts(), epoch=1, sampler=None)
    before = everything({})
    with pytest.raises(CheckpointError, match=said):
        checkpoint.load(tmp_path / "a.pt", **given)
    assert everything({}) == before


def test_a_name_that_is_left_out(tmp_path):
    saved = make_parts()
    checkpoint.save(tmp_path / "a.pt", **saved, epoch=1)
    model = make_net()
    values = checkpoint.load(tmp_path / "a.pt", model=model, optimizer=None, scheduler=None, scaler=None)
    assert values == {"epoch": 1} and everything({"": model}) == everything({"": saved["model"]})


@pytest.mark.parametrize(
    "value, said",
    [
        (lambda: 0, "lambda"),
        (pd.DataFrame([1]), "pandas.DataFrame"),
        ({"loss": [0.5, np.float64(1)]}, "numpy.*scalar"),
        (np.ones(2), "numpy.ndarray"),
        (nn.Linear, "torch.nn.modules.linear.Linear"),
        ({(1, range(3)): 0}, "builtins.range"),
        (Sampler, "Sampler"),
        ((i for i in "ab"), "generator"),
        (2**3000, "Unsupported operand"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_could_not_be_loaded_back_is_refused_before_writing(tmp_path, value, said):
    checkpoint.save(tmp_path / "a.pt", epoch=1)
    with pytest.raises(CheckpointError, match=f"could not be loaded back because of .*{said}.*nothing was saved"):
        checkpoint.save(tmp_path / "a.pt", history=value)
    assert os.listdir(tmp_path) == ["a.pt"] and checkpoint.load(tmp_path / "a.pt") == {"epoch": 1}


def test_a_link_stays_a_link(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("disk").mkdir()
    Path("last.pt").symlink_to("disk/run.pt")  # as where the home folder is too small
    for epoch in (1, 2):
        checkpoint.save("last.pt", epoch=epoch)
    assert Path("last.pt").is_symlink() and sorted(os.listdir()) == ["disk", "last.pt"]
    assert sorted(os.listdir("disk")) == ["run.pt", "run.pt.previous"]
    assert checkpoint.load("last.pt") == {"epoch": 2} and checkpoint.load("disk/run.pt.previous") == {"epoch": 1}
    Path("disk/run.pt").write_text("no checkpoint")
    with pytest.raises(CheckpointError, match="the checkpoint before it is good: load .*disk/run.pt.previous"):
        checkpoint.load("last.pt")


def test_plain_values_come_back_as_they_were(tmp_path):
    values = {
        "epoch": 3,
        "best": float("inf"),
        "name": "net",
        "done": True,
        "none": None,
        "shape": (3, 32, 32),
        "history": [{"loss": 0.5}],
        "by rank": {0: {1, 2}},
        "dtype": torch.bfloat16,
        "big": 2**200,
    }
    leftover = tmp_path / f".a[1].pt.{'0' * 32}.part"  # of a killed save
    leftover.touch()
    checkpoint.save(tmp_path / "a[1].pt", **values, best_weights=torch.arange(3.0))
    found = checkpoint.load(tmp_path / "a[1].pt")
    assert found.pop("best_weights").tolist() == [0, 1, 2] and found == values
    assert os.listdir(tmp_path) == ["a[1].pt"]
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "a[1].pt").stat().st_mode & 0o777 == 0o666 & ~umask, "others can no longer read it"


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_random_states_of_gpus_that_are_not_here(tmp_path, capsys):
    path = tmp_path / "a.pt"
    checkpoint.save(path, model=make_net(), epoch=1)
    content = torch.load(path, weights_only=True)
    content["random"]["cuda"] = [torch.zeros(16, dtype=torch.uint8)] * 2
    torch.save(content, path)
    assert checkpoint.load(path, model=make_net()) == {"epoch": 1}
    assert "Random states of GPUs: 2 in the checkpoint, 0 GPUs here" in capsys.readouterr().out


def test_gpus_that_torch_counts_and_cuda_does_not_give(tmp_path, capsys):
    """In MIG mode torch 2.11 counts all GPUs, and CUDA gives a slice of one: only that one has a random state."""
    from tests.helpers.machines import H200  # not above: run as a file, this one finds no tests.helpers
    from tests.helpers.played_gpus import PlayedGpus

    with PlayedGpus({"cards": [H200] * 2, "slices": {0: 2, 1: 2}}):
        drawn = torch.cuda.default_generators[0].get_state()
        checkpoint.save(tmp_path / "a.pt", model=make_net())
        torch.cuda.default_generators[0].manual_seed(1)
        checkpoint.load(tmp_path / "a.pt", model=make_net())
        assert torch.equal(torch.cuda.default_generators[0].get_state(), drawn)
    assert not capsys.readouterr().out


@pytest.mark.gpu
def test_saved_on_a_gpu(tmp_path, capsys):
    def parts(device):
        model = make_net().to(device)
        return make_parts(model) | {"scaler": torch.amp.GradScaler(device)}

    def one_step(parts, device):
        loss = F.dropout(parts["model"](torch.ones(8, 3, device=device)), 0.5).sum()
        parts["optimizer"].zero_grad()
        parts["scaler"].scale(loss).backward()
        parts["scaler"].step(parts["optimizer"])
        parts["scaler"].update()

    saved, here, on_cpu = parts("cuda"), parts("cuda"), parts("cpu")
    one_step(saved, "cuda")
    checkpoint.save(tmp_path / "a.pt", **saved)
    one_step(saved, "cuda")
    checkpoint.load(tmp_path / "a.pt", **here)
    one_step(here, "cuda")
    assert everything(here) == everything(saved)
    assert not capsys.readouterr().out
    checkpoint.load(tmp_path / "a.pt", **on_cpu)
    assert {p.device.type for p in on_cpu["model"].parameters()} == {"cpu"}
    one_step(on_cpu, "cpu")


if __name__ == "__main__":
    serve()
