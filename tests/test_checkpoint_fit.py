"""A checkpoint that is none, or of something else, is refused, and nothing has changed then."""

import io
import os
import pickle
import random
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from test_checkpoint import everything
from torch import nn

from course_utils import checkpoint
from course_utils.checkpoint import CheckpointError


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


def in_reverse(parameters):
    return torch.optim.Adam(list(parameters)[::-1])


def of_the_first(parameters):
    return torch.optim.Adam([next(parameters)])


@pytest.mark.parametrize("saved, here, said", [
    (dict(model=make_net(5)), {}, r"model's 0.weight was \(5, 3\) of float32 and is \(4, 3\) of float32 here"),
    (dict(model=make_net(dtype=torch.float64)), {}, r"0.weight was \(4, 3\) of float64 and is \(4, 3\) of float32"),
    (dict(model=make_net(extra=True)), {}, "model had 3.weight and 1 more, and has not here"),
    ({}, dict(model=make_net(extra=True)), "model has 3.weight and 1 more here, and the checkpoint does not"),
    (dict(optimizer=torch.optim.SGD), {}, "optimizer was SGD and is Adam here"),
    (dict(optimizer=in_two_groups), {}, "optimizer had 2 parameter groups and has 1 here"),
    (dict(optimizer=of_the_first), {}, "optimizer's parameter group 0 had 1 parameters and has 4 here"),
    (dict(optimizer=in_reverse), {}, r"parameter 0 \(in group 0\) was \(2,\) of float32 and is \(4, 3\) of float32"),
    (dict(scheduler=torch.optim.lr_scheduler.StepLR), {}, "scheduler was StepLR and is ExponentialLR here"),
])
def test_a_checkpoint_of_something_else_changes_nothing(tmp_path, saved, here, said):
    checkpoint.save(tmp_path / "a.pt", **make_parts(**saved))
    parts = make_parts(**here)
    before = everything(parts)
    with pytest.raises(CheckpointError, match=f"{said}.*; nothing was changed$"):
        checkpoint.load(tmp_path / "a.pt", **parts)
    assert everything(parts) == before


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
    path.write_bytes({
        "empty": b"", "text": b"epoch 3\n", "pickle": pickle.dumps(bomb), "zip": archive.getvalue(),
        "half": whole[: len(whole) // 2], "short": whole[:-1], "begun": whole[:10],
        "bit": whole[: weight + 5] + bytes([whole[weight + 5] ^ 1]) + whole[weight + 6:],
        "hole": whole[:1000] + bytes(500) + whole[1500:],
    }[how])


@pytest.mark.parametrize("how, said", [
    ("empty", "is empty"), ("text", "is no checkpoint: it does not begin"), ("pickle", "is no checkpoint"),
    ("zip", "is truncated or damaged"), ("half", "is truncated or damaged"), ("short", "is truncated or damaged"),
    ("begun", "is truncated or damaged"), ("bit", "is truncated or damaged .the checksum of its part data/"),
    ("hole", "is truncated or damaged"), ("object", "loading those could run code"),
    ("state_dict", r"something else that torch.save wrote: torch.load\(path, weights_only=True\) reads it"),
    ("missing", "there is no checkpoint"), ("folder", "cannot be read: Is a directory"),
])
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


@pytest.mark.parametrize("given, said", [
    (dict(model=make_net()), r"also holds optimizer, scheduler: give load optimizer=…, or optimizer=None"),
    (dict(make_parts(), scaler=torch.amp.GradScaler("cpu")), "holds model, optimizer, scheduler; scaler is not in it"),
    (dict(make_parts(), epoch=1), "returns plain values: epoch=1 has no state to restore"),
    (dict(make_parts(), sampler=Sampler(0)), "sampler is there as a plain value"),
])
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


@pytest.mark.parametrize("value, said", [
    (lambda: 0, "history is a function"), (pd.DataFrame([1]), "history is a pandas.*DataFrame"),
    ({"loss": [0.5, np.float64(1)]}, r"history\['loss'\]\[1\] is a numpy.float64"), (np.ones(2), "numpy.ndarray"),
    (nn.Linear, "history is a type"), (torch.ones(2, device="meta"), "history is on the meta device"),
    ({(1, range(3)): 0}, r"history's key .*\[1\] is a range"), (Sampler, "history is a type"),
], ids=lambda value: value if isinstance(value, str) else type(value).__name__)
def test_what_could_not_be_loaded_back_is_refused_before_writing(tmp_path, value, said):
    checkpoint.save(tmp_path / "a.pt", epoch=1)
    with pytest.raises(CheckpointError, match=f"{said}.*nothing was saved"):
        checkpoint.save(tmp_path / "a.pt", history=value)
    assert os.listdir(tmp_path) == ["a.pt"] and checkpoint.load(tmp_path / "a.pt") == {"epoch": 1}


def test_plain_values_come_back_as_they_were(tmp_path):
    values = {"epoch": 3, "best": float("inf"), "name": "net", "done": True, "none": None, "shape": (3, 32, 32),
              "history": [{"loss": 0.5}], "by rank": {0: {1, 2}}, "dtype": torch.bfloat16, "big": 2**200}
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


def test_what_is_given_without_a_name_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="a Linear was given without a name.*write model=model"):
        checkpoint.save(tmp_path / "run.pt", nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match="a Linear was given without a name"):
        checkpoint.load(tmp_path / "run.pt", nn.Linear(2, 2))
