"""Checks of chapter 01: where tensors live, and the bytes they take; `meta` is the device that every machine has."""

import linecache
import traceback
from collections import namedtuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .. import hardware
from .wrong import expect, is_whole, judge_in_worker, max_difference

# ---- 1.1 ----------------------------------------------------------------------------------------------------------


def check_1_1(list_state):
    """`list_state(model)` returns a row (name, shape, device, num_bytes) for each tensor of the state_dict."""
    judge_in_worker(_judge_rows, list_state)
    return f"{len(_state_cases())} models, one of them on two devices, were listed with every tensor's place and bytes."


def _state_cases():
    normed = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    normed.register_buffer("scratch", torch.zeros(5), persistent=False)  # not saved, so not in the state_dict
    view = nn.Linear(2, 2)
    view.weight = nn.Parameter(torch.zeros(100, 2)[:2])
    return {
        "a float32 model": nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)),
        "a model in two places": nn.ModuleDict({"here": nn.Linear(3, 2), "there": nn.Linear(5, 3, device="meta")}),
        "a bfloat16 model": nn.Linear(6, 5).bfloat16(),
        "a model with BatchNorm": normed,
        "a model whose weight is the first rows of a larger tensor": view,
    }


def _judge_rows(list_state):
    for case, model in _state_cases().items():
        rows = list_state(model)
        expect(rows is not None, f"for {case} the answer was None: are the rows returned, or only printed?")
        expect(
            isinstance(rows, list) and all(isinstance(row, tuple) and len(row) == 4 for row in rows),
            f"for {case} the answer was {_short(rows)}, not a list of tuples (name, shape, device, num_bytes)",
        )
        state = model.state_dict()
        names = [row[0] for row in rows]
        missing = [name for name in state if name not in names]
        is_parameter = set(missing[:1]) & set(dict(model.named_parameters()))
        why = "does the answer go through all of them?" if is_parameter else "a state_dict holds more than parameters"
        expect(not missing, f"for {case} there is no row for {missing[:1]}: {why}")
        extra = [name for name in names if name not in state]
        expect(not extra, f"for {case} there is a row {extra[:1]}, which is not in the state_dict")
        expect(names == list(state), f"for {case} the rows come in the order {names}, the state_dict has {list(state)}")
        for (name, shape, device, num_bytes), tensor in zip(rows, state.values()):
            where = f"for {case}, {name!r}:"
            expect(isinstance(shape, tuple), f"{where} the shape is {shape!r}, not a tuple")
            expect(tuple(shape) == tuple(tensor.shape), f"{where} the shape is {tuple(shape)}, its own is another")
            expect(isinstance(device, str), f"{where} the device is {device!r}, which is not a text")
            expect(device == str(tensor.device), f"{where} the device is {device!r}: is each tensor asked where it is?")
            _expect_bytes(where, num_bytes, tensor)


def _expect_bytes(where, num_bytes, tensor):
    expect(is_whole(num_bytes), f"{where} the bytes are {num_bytes!r}, not a whole number")
    if num_bytes == tensor.nbytes:
        return
    why = f"has {tensor.numel()} elements of {tensor.dtype}"
    if num_bytes == tensor.numel():
        why += ", and an element takes more than one byte"
    elif num_bytes == tensor.untyped_storage().nbytes():
        why += ", which are only a part of the memory that they lie in"
    elif num_bytes == 4 * tensor.numel():
        why += ", and not every dtype takes 4 bytes"
    expect(False, f"{where} the bytes are {num_bytes}, but the tensor {why}")


# ---- 1.2 ----------------------------------------------------------------------------------------------------------


_MOVED = "the step moves the model: it was put on its device before training, once"


class _Rooted(nn.Module):
    """A small classifier that counts how often somebody moves it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(12)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 3))
        self.num_moves = 0

    def forward(self, x):
        return self.layers(x)

    def _apply(self, *args, **kwargs):  # every .to, .cpu and .cuda of a module comes through here
        self.num_moves += 1
        return super()._apply(*args, **kwargs)


class _OneDevice(TorchDispatchMode):
    """Notes the first operation whose tensors are on two devices; on `meta` some of them pass without an error."""

    def __init__(self, answer):
        super().__init__()
        self.answer, self.mixed = answer, None

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.dim()]
        places = sorted({t.device.type for t in tensors})
        if len(places) > 1 and self.mixed is None and operation.overloadpacket is not torch.ops.aten.copy_:
            self.mixed = f"{_line(traceback.extract_stack(), self.answer)} mixes tensors on {' and '.join(places)}"
        return operation(*args, **(kwargs or {}))


def check_1_2(train_step):
    """`train_step(model, optimizer, images, labels)` makes the same step wherever the model is."""
    judge_in_worker(_judge_steps, train_step)
    return f"the step works with the model on {', '.join(map(str, _places()))}, and computes what it did on the CPU."


def _places():
    device = hardware.devices(1)[0]
    return ["cpu", "meta"] + ([device] if device.type == "cuda" else [])


def _colour_batches():
    generator = torch.Generator().manual_seed(120)
    images = torch.rand(2, 8, 3, 2, 2, generator=generator)
    return [(x, torch.tensor([0, 1, 2, 0, 1, 1, 0, 2])) for x in images]


def _reference(mean=(0.4, 0.5, 0.6), rarity=(1.0, 1.0, 4.0), accumulate=False):
    """The losses and the final parameters of the repaired step, or of one with something left out, on the CPU."""
    model, losses = _Rooted(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for images, labels in _colour_batches():
        if not accumulate:
            optimizer.zero_grad()
        x = images - torch.tensor(mean).view(3, 1, 1)
        losses.append(F.cross_entropy(model(x), labels, weight=torch.tensor(rarity)))
        losses[-1].backward()
        optimizer.step()
    return [torch.stack(losses).detach(), *(p.detach() for p in model.parameters())]


def _judge_steps(train_step):
    for place in _places():
        torch.set_default_device(None)  # an answer may have set one
        case = f"with the model on {place}"
        model = _Rooted().to(place)
        model.num_moves = 0
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, lr=0.5, momentum=0.9)
        steps, losses = [], []
        optimizer.register_step_post_hook(lambda *_: steps.append(1))
        for images, labels in _colour_batches():
            given, watch = (images.clone(), labels.clone()), _OneDevice(train_step)
            loss = _take_step(case, watch, model, optimizer, images, labels)
            expect(model.num_moves == 0, f"{case}, {_MOVED}")
            expect(torch.equal(images, given[0]), f"{case}, the step has changed the images that it was given")
            expect(torch.equal(labels, given[1]), f"{case}, the step has changed the labels that it was given")
            expect(isinstance(loss, torch.Tensor), f"{case}, the step returned {_short(loss)}, and not the loss as a tensor")
            expect(loss.dim() == 0, f"{case}, the step returned a tensor of shape {tuple(loss.shape)}, not a loss")
            expect(loss.device == parameters[0].device, f"{case}, the loss came back on {loss.device}")
            losses.append(loss.detach())
        expect(len(steps) == 2, f"{case}, the optimizer made {len(steps)} steps for two batches")
        if place != "meta":
            _expect_numbers(case, [p.detach().cpu() for p in [torch.stack(losses), *parameters]])


def _take_step(case, watch, model, optimizer, images, labels):
    try:
        with watch:
            loss = watch.answer(model, optimizer, images, labels)
    except RuntimeError as error:
        if isinstance(error, NotImplementedError) and not str(error):
            raise  # the stub's
        expect(model.num_moves == 0, f"{case}, {_MOVED}")
        expect(watch.mixed is None, f"{case}, {watch.mixed}")
        line = _line(traceback.extract_tb(error.__traceback__), watch.answer)
        message = str(error).partition("\n")[0]
        expect(False, f"{case}, {line} fails: {message}")
    expect(watch.mixed is None, f"{case}, {watch.mixed}")
    return loss


def _expect_numbers(case, got):
    """`got` are the losses and then the parameters, on the CPU."""
    if max_difference(got, _reference()) < 1e-4:
        return
    for changes, reason in (
        ({"mean": (0.0, 0.0, 0.0)}, "the colours' mean is no longer subtracted"),
        ({"rarity": (1.0, 1.0, 1.0)}, "all classes count alike"),
        ({"accumulate": True}, "gradients of the last step are still there in the next"),
    ):
        apart = max_difference(got, _reference(**changes))
        expect(apart > 1e-4, f"{case}, {reason}: repair the step, and keep what it does")
    expect(False, f"{case}, losses or parameters are not those of the original step: keep what it does")


def _line(frames, answer):
    """The last of `frames` in the answer's own cell, in words."""
    file = getattr(getattr(answer, "__code__", None), "co_filename", None)
    own = [frame for frame in frames if frame.filename == file]
    if not own:
        return "a line"
    source = linecache.getline(file, own[-1].lineno).strip()
    return f"line {own[-1].lineno} ({source})" if source else f"line {own[-1].lineno}"


# ---- 1.3 ----------------------------------------------------------------------------------------------------------

Sample = namedtuple("Sample", "image label")


def check_1_3(move):
    """`move(batch, device)` moves the tensors in nested containers and keeps everything else."""
    judge_in_worker(_judge_moves, move)
    return "tensors moved in dicts, lists, tuples and namedtuples, nested and empty; all else and the originals stayed."


def _batches():
    image, label = torch.rand(2, 3), torch.tensor([1, 2])
    return {
        "a tensor": image,
        "a pair of tensors": (image, label),
        "a dict": {"image": image, "label": label},
        "a list in a dict": {"images": [image, image + 1], "label": label},
        "a text": "seven",
        "a batch with other things": {"image": image, "name": "seven", "count": 7, 3: None, "raw": np.zeros(2)},
        "empty containers": [{}, [], ()],
        "a namedtuple": Sample(image, label),
        "containers in containers": [({"pair": (image, [label, {"deep": Sample([image], None)}])}, "x"), 1.5],
    }


def _judge_moves(move):
    for device in ("meta", "cpu"):
        for name, batch in _batches().items():
            before = list(_leaves(batch))
            try:
                got = move(batch, torch.device(device))
            except RecursionError:
                expect(False, f"{name} made the function call itself for ever: a text's items are texts again")
            after = list(_leaves(batch))
            same = len(after) == len(before) and all(a == b and x is y for (a, x), (b, y) in zip(after, before))
            expect(same, f"moving {name} has changed the original: build new containers")
            _expect_moved(got, batch, device, name, "the result")


def _leaves(batch, path=""):
    """(path, thing) for all that is in `batch` and is no container."""
    if isinstance(batch, dict):
        for key, value in batch.items():
            yield from _leaves(value, f"{path}[{key!r}]")
    elif isinstance(batch, (list, tuple)):
        for i, value in enumerate(batch):
            yield from _leaves(value, f"{path}[{i}]")
    else:
        yield path, batch


def _expect_moved(got, given, device, name, path):
    where = f"of {name}, {path}"
    if isinstance(given, torch.Tensor):
        expect(isinstance(got, torch.Tensor), f"{where} is {_short(got)}, and was a tensor")
        expect(got.device.type == device, f"{where} is still on {got.device}, asked for was {device}")
        now, before = ((t.dtype, tuple(t.shape)) for t in (got, given))
        expect(now == before, f"{where} is {now[0]} of shape {now[1]}, and was {before[0]} of shape {before[1]}")
        expect(device == "meta" or torch.equal(got, given), f"{where} holds other numbers than before")
    elif isinstance(given, (dict, list, tuple)):
        expect(
            type(got) is type(given),
            f"{where} is a {type(got).__name__}, and was a {type(given).__name__}: the kind of container must stay",
        )
        keys = list(given) if isinstance(given, dict) else range(len(given))
        expect(len(got) == len(given), f"{where} has {len(got)} items, and had {len(given)}")
        expect(not isinstance(given, dict) or list(got) == keys, f"{where} has other keys than before")
        for key in keys:
            _expect_moved(got[key], given[key], device, name, f"{path}[{key!r}]")
    else:
        now = "a copy of what was there" if repr(got) == repr(given) else f"{_short(got)}, and was {_short(given)}"
        expect(got is given, f"{where} is {now}, which should come back as it is")


# ---- 1.4 ----------------------------------------------------------------------------------------------------------


def check_1_4(model_bytes):
    """`model_bytes(model, dtype)` returns the bytes of parameters and buffers after a conversion that is not made."""
    judge_in_worker(_judge_bytes, model_bytes)
    return f"{len(_byte_cases())} models, with whole numbers and shared weights among them, in float32 and bfloat16."


def _byte_cases():
    tied = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    tied[2].weight = tied[0].weight
    buffered = nn.Linear(5, 3)
    buffered.register_buffer("table", torch.zeros(7, dtype=torch.int32))
    buffered.register_buffer("scratch", torch.zeros(11), persistent=False)
    return {
        "two linear layers": nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)),
        "a layer already in bfloat16": nn.Linear(9, 4).bfloat16(),
        "a float64 layer": nn.Linear(4, 4).double(),
        "a network with BatchNorm": nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
        "a layer with two buffers of its own": buffered,
        "two layers that share a weight": tied,
    }


def _judge_bytes(model_bytes):
    for case, model in _byte_cases().items():
        state = {name: (tensor.data_ptr(), tensor.dtype) for name, tensor in model.state_dict().items()}
        for dtype in (torch.bfloat16, torch.float32):
            where = f"for {case} in {str(dtype).removeprefix('torch.')}"
            answer = model_bytes(model, dtype)
            now = {name: (tensor.data_ptr(), tensor.dtype) for name, tensor in model.state_dict().items()}
            expect(now == state, f"{where}, the model itself was converted: it must stay as it is")
            expect(is_whole(answer), f"{where} the answer was {answer!r}, not a whole number of bytes")
            if answer != (truth := _count(model, dtype)):
                near = [reason for reason, count in _slips(model, dtype) if count == answer]
                expect(False, f"{where} the answer was {answer}, {'; '.join(near[:1]) or _by_how_much(answer, truth)}")


def _count(model, dtype, buffers=True, twice=False, whole=True, convert=True, saved_only=False):
    """The bytes of `model` in `dtype`, or what one gets who overlooks something."""
    tensors = [*model.named_parameters(remove_duplicate=not twice)]
    tensors += [*model.named_buffers()] if buffers else []
    if saved_only:
        tensors = [(name, tensor) for name, tensor in tensors if name in model.state_dict()]

    def size(tensor):
        converted = convert and (tensor.is_floating_point() or not whole)
        return dtype.itemsize if converted else tensor.element_size()

    return sum(tensor.numel() * size(tensor) for _, tensor in tensors)


def _slips(model, dtype):
    yield "which leaves out the buffers", _count(model, dtype, buffers=False)
    yield "which counts the shared weight twice", _count(model, dtype, twice=True)
    yield "which converts whole numbers, too", _count(model, dtype, whole=False)
    yield "which is what it takes now, before the conversion", _count(model, dtype, convert=False)
    yield "which leaves out a buffer that is not saved, but takes memory", _count(model, dtype, saved_only=True)
    yield "which is half of what it takes now, whatever it takes now", _count(model, dtype, convert=False) // 2
    num_elements = sum(tensor.numel() for tensor in [*model.parameters(), *model.buffers()])
    yield "which is a number of elements and not of bytes", num_elements


def _by_how_much(answer, truth):
    return f"which is {abs(answer - truth)} bytes too {'many' if answer > truth else 'few'}"


def _short(value):
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
