"""Checks of chapter 01: where tensors live and how many bytes they take.

They run on the CPU, on `meta` and on fake GPUs.
"""

from collections import namedtuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ...checks.expect import (
    Wrong,
    case,
    expect,
    expect_row,
    expect_tensor,
    expect_whole,
    explain,
    not_a,
    short,
    unchanged,
)
from ...checks.judge import run
from ...checks.watch.devices import Devices, Values, own_line
from ...checks.watch.fake_gpus import put_on, try_on_gpus

# ---- 1.1 ----------------------------------------------------------------------------------------------------------


def check_1_1(list_state):
    """`list_state(model)` returns a row (name, shape, device, num_bytes) for each tensor of the state_dict."""
    run(_judge_rows_of_all, list_state)
    return f"{len(_state_cases())} models, one of them on two devices, were listed with every tensor's place and bytes."


def _state_cases():
    normed = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    normed.register_buffer("scratch", torch.zeros(5), persistent=False)  # not saved, so not in the state_dict
    view, odd, tied = nn.Linear(2, 2), nn.Module(), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    view.weight = nn.Parameter(torch.zeros(100, 2)[:2])
    for i, dtype in enumerate((torch.bool, torch.int16, torch.float64, torch.complex64, torch.float16)):
        odd.register_buffer(f"rank_{i}", torch.zeros((2,) * i, dtype=dtype))
    odd.register_buffer("empty", torch.zeros(0, 3))
    odd.register_buffer("turned", torch.zeros(4, 5).t())
    odd.register_buffer("repeated", torch.zeros(1).expand(7))
    tied[1].weight = tied[0].weight
    return {
        "a float32 model": nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)),
        "a model in two places": nn.ModuleDict({"here": nn.Linear(3, 2), "there": nn.Linear(5, 3, device="meta")}),
        "a bfloat16 model": nn.Linear(6, 5).bfloat16(),
        "a model with BatchNorm": normed,
        "a model whose weight is the first rows of a larger tensor": view,
        "a model with tensors of many dtypes and shapes": odd,
        "a model whose layers share a weight": tied,
        "a model without tensors": nn.ReLU(),
    }


def _judge_rows_of_all(list_state):
    for text, model in _state_cases().items():
        with case(f"for {text}"):
            _judge_rows(list_state, model)
        with case(f"for {text}, once it has become float64"):
            _judge_rows(list_state, model.double())
    with case("for a model on two GPUs"):
        try_on_gpus(
            lambda devices: _judge_rows(list_state, nn.ModuleList(put_on(nn.Linear(3, 2), d) for d in devices), False),
            2,
        )


def _judge_rows(list_state, model, has_numbers=True):
    with unchanged(model=model):
        rows = expect_row(list_state(model), None, of="rows (name, shape, device, num_bytes)")
    rows = [expect_row(row, 4, f"row {i}", of="name, shape, device, num_bytes") for i, row in enumerate(rows)]
    for i, row in enumerate(rows):
        expect(isinstance(row[0], str), f"row {i} begins with {short(row[0])}, and not with a name")
    state, names = model.state_dict(), [row[0] for row in rows]
    missing, extra = ([name for name in a if name not in b] for a, b in ((state, names), (names, state)))
    is_parameter = set(missing[:1]) & set(dict(model.named_parameters(remove_duplicate=False)))
    why = "does the answer go through all of them?" if is_parameter else "a state_dict holds more than parameters"
    expect(not missing, f"there is no row for {missing[:1]}: {why}")
    expect(not extra, f"there is a row {extra[:1]}, which is not in the state_dict")
    expect(names == list(state), f"the rows come in the order {names}, the state_dict has {list(state)}")
    for (name, shape, device, num_bytes), tensor in zip(rows, state.values()):
        with case(repr(name)):
            expect(isinstance(shape, tuple), f"the shape is {not_a(shape, 'a tuple')}")
            expect(shape == tuple(tensor.shape), f"the shape is {tuple(shape)}, its own is another")
            expect(isinstance(device, str), f"the device is {short(device)}, which is not a text")
            where = "which of the GPUs is it?" if device == tensor.device.type else "is each tensor asked where it is?"
            expect(device == str(tensor.device), f"the device is {device!r}: {where}")
            if has_numbers:
                _judge_num_bytes(expect_whole(num_bytes, "the number of bytes"), tensor)


def _judge_num_bytes(num_bytes, tensor):
    n = tensor.numel()
    explain(num_bytes, n * tensor.element_size(), {
        "an element takes more than one byte": n,
        "these are only a part of the memory that they lie in": tensor.untyped_storage().nbytes(),
        "not every dtype takes 4 bytes": 4 * n,
    }, said=f"the bytes are {num_bytes}, but the tensor has {n} elements of {tensor.dtype}")  # fmt: skip


# ---- 1.2 ----------------------------------------------------------------------------------------------------------

_MOVED = "the step moves the model: it was put on its device before training, once"
_BATCHES = ((8, 2, 2), (8, 2, 2), (3, 4, 1), (1, 1, 4))  # images per batch, height, width


class _Rooted(nn.Module):
    """A small classifier that counts how often it is moved."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(12)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 3))
        self.num_moves = 0

    def forward(self, x):
        return self.layers(x)

    def _apply(self, *args, **kwargs):  # called by a module's .to, .cpu and .cuda
        self.num_moves += 1
        return super()._apply(*args, **kwargs)


def check_1_2(train_step):
    """`train_step(model, optimizer, images, labels)` makes the same step wherever the model is."""
    run(_judge_steps_everywhere, train_step)
    others = "on meta and on a simulated GPU" if torch.backends.cuda.is_built() else "on meta"
    return f"the step computes on the CPU what it did before, and works with the model {others}, too."


def _judge_steps_everywhere(train_step):
    batches = []
    for size, height, width in _BATCHES:
        generator = torch.Generator().manual_seed(120 + size)
        images = torch.rand(size, height, width, 3, generator=generator).movedim(-1, 1)  # channels last, as in a file
        batches.append((images, torch.randint(3, (size,), generator=generator)))
    for place in (torch.device("cpu"), torch.device("meta")):
        _judge_steps(train_step, place, batches)
    try_on_gpus(lambda devices: _judge_steps(train_step, devices[1], batches), 2)


def _judge_steps(train_step, place, batches):
    with case(f"with the model on {place}"):
        model = put_on(_Rooted(), place) if place.type == "cuda" else _Rooted().to(place)
        model.num_moves = 0
        optimizer, num_steps, losses = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), [], []
        optimizer.register_step_post_hook(lambda *_: num_steps.append(1))
        for images, labels in batches:
            with unchanged(model=model, allow=("grad", "values")), unchanged(images=images, labels=labels):
                loss = _take_step(train_step, place, model, optimizer, images, labels)
            losses.append(expect_tensor(loss, torch.empty((), device=place), "the loss"))
        expect(len(num_steps) == len(batches), f"the optimizer made {len(num_steps)} steps for {len(batches)} batches")
        if place.type == "cpu":
            explain([torch.stack(losses), *(p.detach() for p in model.parameters())], _reference(batches), {
                "the colours' mean is no longer subtracted": _reference(batches, mean=(0.0, 0.0, 0.0)),
                "all classes count alike": _reference(batches, rarity=(1.0, 1.0, 1.0)),
                "gradients of the last step are still there in the next": _reference(batches, accumulate=True),
            }, "losses or parameters are not those of the original step", "keep what it does", close=1e-4)  # fmt: skip


def _take_step(train_step, place, model, optimizer, images, labels):
    devices, values = Devices(), Values()
    try:
        with devices, values:
            loss = train_step(model, optimizer, images, labels)
    except (RuntimeError, TypeError) as error:
        if isinstance(error, NotImplementedError) and not str(error):
            raise  # the exercise is not solved yet
        line, said = own_line(error), str(error).partition("\n")[0]
        expect(model.num_moves == 0, _MOVED)
        expect(values.fault is None, values.fault)
        expect(devices.fault is None, devices.fault)
        if place.type == "cuda" or isinstance(error, TypeError):
            raise
        raise Wrong(f"{line} fails: {said}") from None
    expect(model.num_moves == 0, _MOVED)
    expect(values.fault is None, values.fault)
    expect(devices.fault is None, devices.fault)
    return loss


def _reference(batches, mean=(0.4, 0.5, 0.6), rarity=(1.0, 1.0, 4.0), accumulate=False):
    """Return losses and final parameters of the correct step on the CPU, or of one with a mistake."""
    model, losses = _Rooted(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for images, labels in batches:
        if not accumulate:
            optimizer.zero_grad()
        x = images - torch.tensor(mean).view(3, 1, 1)
        losses.append(F.cross_entropy(model(x), labels, weight=torch.tensor(rarity)))
        losses[-1].backward()
        optimizer.step()
    return [torch.stack(losses).detach(), *(p.detach() for p in model.parameters())]


# ---- 1.3 ----------------------------------------------------------------------------------------------------------

Sample = namedtuple("Sample", "image label")


def check_1_3(move):
    """`move(batch, device)` moves the tensors in nested containers and keeps everything else."""
    run(_judge_moves, move)
    return "tensors moved in dicts, lists, tuples and namedtuples, nested and empty; all else and the originals stayed."


def _batches():
    image, label, deep = torch.rand(2, 3), torch.tensor([1, 2]), {"image": torch.rand(2)}
    for _ in range(20):
        deep = [(deep,)]
    dtypes = torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64
    return {
        "a tensor": image,
        "a pair of tensors": (image, label),
        "a dict": {"image": image, "label": label},
        "a list in a dict": {"images": [image, image + 1], "label": label},
        "a text": "seven",
        "a batch with other things": {
            "image": image,
            "name": "seven",
            "count": 7,
            3: None,
            "raw": np.zeros(2),
            (1, 2): b"7",
        },
        "empty containers": [{}, [], ()],
        "a namedtuple": Sample(image, label),
        "containers in containers": [({"pair": (image, [label, {"deep": Sample([image], None)}])}, "x"), 1.5],
        "tensors of other shapes": [torch.rand(shape) for shape in ((), (1,), (2, 1, 3), (1, 2, 1, 2, 1), (0, 3))],
        "tensors of other dtypes": [torch.ones(2).to(dtype) for dtype in dtypes],
        "tensors that lie otherwise": (torch.rand(3, 2).t(), torch.rand(6)[::2], torch.rand(1).expand(3)),
        "a tensor with a gradient": [torch.rand(2, requires_grad=True)],
        "a layer among the rest": {"image": image, "layer": nn.Linear(2, 1), "numbers": {1, 2}, "kind": torch.float32},
        "many containers, one in the other": deep,
    }


def _judge_moves(move):
    for device in map(torch.device, ("meta", "cpu")):
        for text, batch in _batches().items():
            with case(f"{text} to {device}"):
                _expect_moved(_moved(move, batch, device), batch, device)
    batch = {"pair": (torch.rand(2), [torch.rand(3), 7])}
    with case("a dict from the CPU to a GPU"):
        try_on_gpus(lambda devices: _expect_moved(move(batch, devices[1]), batch, devices[1]), 2)
    try_on_gpus(lambda devices: _judge_return(move, devices), 2)


def _moved(move, batch, device):
    try:
        with unchanged(batch=batch):
            return move(batch, device)
    except RecursionError:
        raise Wrong("the function called itself for ever: a text's items are texts again") from None


def _judge_return(move, devices):
    there = torch.empty(2, device=devices[0])
    if move(there, devices[1]).device != devices[1]:
        return  # the answer tests for exactly torch.Tensor; fake ones are a subclass
    with case("a tensor from a GPU to the CPU"):
        _expect_moved(move(there, torch.device("cpu")), there, torch.device("cpu"))


def _expect_moved(got, given, device, path="the result"):
    if isinstance(given, torch.Tensor):
        expect(isinstance(got, torch.Tensor), f"{path} is {short(got)}, and was a tensor")
        expect(got.device == device, f"{path} is still on {got.device}, asked for was {device}")
        now, before = ((t.dtype, tuple(t.shape)) for t in (got, given))
        expect(now == before, f"{path} is {now[0]} of shape {now[1]}, and was {before[0]} of shape {before[1]}")
        is_known = given.device == device == torch.device("cpu")
        expect(not is_known or torch.equal(got, given), f"{path} holds other numbers than before")
    elif isinstance(given, (dict, list, tuple)):
        expect(
            type(got) is type(given),
            f"{path} is a {type(got).__name__}, and was a {type(given).__name__}: the kind of container must stay",
        )
        keys = list(given) if isinstance(given, dict) else range(len(given))
        expect(len(got) == len(given), f"{path} has {len(got)} items, and had {len(given)}")
        expect(not isinstance(given, dict) or list(got) == keys, f"{path} has other keys than before")
        for key in keys:
            _expect_moved(got[key], given[key], device, f"{path}[{key!r}]")
    else:
        now = "a copy of what was there" if repr(got) == repr(given) else f"{short(got)}, and was {short(given)}"
        expect(got is given, f"{path} is {now}, which should come back as it is")


# ---- 1.4 ----------------------------------------------------------------------------------------------------------


def check_1_4(model_bytes):
    """`model_bytes(model, dtype)` returns the bytes that parameters and buffers would take in `dtype`."""
    run(_judge_bytes, model_bytes)
    return f"{len(_byte_cases())} models, with whole numbers and shared weights among them, in float32 and bfloat16."


def _byte_cases():
    tied = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    buffered = nn.Linear(5, 3)
    frozen = nn.Linear(9, 4)
    whole = nn.ReLU()
    tied[1].weight = tied[0].weight
    for name, buffer in (
        ("table", torch.zeros(7, dtype=torch.int32)),
        ("mask", torch.ones(3, 5, dtype=torch.bool)),
        ("narrow", torch.zeros(2).half()),
        ("empty", torch.zeros(0)),
    ):
        buffered.register_buffer(name, buffer)
    buffered.register_buffer("scratch", torch.zeros(11), persistent=False)
    tied[0].table = tied[1].table = nn.Buffer(buffered.table)
    whole.register_buffer("count", torch.tensor(0))
    frozen.bfloat16().weight.requires_grad_(False)
    frozen(torch.ones(1, 9).bfloat16()).sum().backward()
    return {
        "two linear layers": nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)),
        "a layer already in bfloat16": frozen,
        "a float64 layer": nn.Linear(4, 4).double(),
        "a network with BatchNorm": nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
        "a layer with buffers of its own": buffered,
        "two layers that share a weight and a buffer": tied,
        "two layers on meta": nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)).to("meta"),
        "a layer whose only tensor is a whole number": whole,
        "a layer without tensors": nn.ReLU(),
    }


def _judge_bytes(model_bytes):
    for text, model in _byte_cases().items():
        for dtype in (torch.bfloat16, torch.float32):
            with case(f"for {text} in {str(dtype).removeprefix('torch.')}"):
                with unchanged(model=model):
                    answer = expect_whole(model_bytes(model, dtype), "the number of bytes")
                truth, elements = _count(model, dtype), sum(t.numel() for t in [*model.parameters(), *model.buffers()])
                far = f"that is {abs(answer - truth)} bytes too {'many' if answer > truth else 'few'}"
                explain(
                    answer,
                    truth,
                    {
                        "that leaves out the buffers": _count(model, dtype, buffers=False),
                        "that counts twice what is shared": _count(model, dtype, twice=True),
                        "that converts whole numbers, too": _count(model, dtype, whole=False),
                        "that is what it takes now, before the conversion": _count(model, dtype, convert=False),
                        "that leaves out a buffer that is not saved, but takes memory": _count(
                            model, dtype, saved_only=True
                        ),
                        "that is half of what it takes now, whatever it takes now": _count(model, dtype, convert=False)
                        // 2,
                        "that is a number of elements and not of bytes": elements,
                    },
                    f"{answer} came back",
                    far,
                )


def _count(model, dtype, buffers=True, twice=False, whole=True, convert=True, saved_only=False):
    """Return the bytes of `model` in `dtype`; each further argument brings in one typical mistake."""
    tensors = [
        *model.named_parameters(remove_duplicate=not twice),
        *(model.named_buffers(remove_duplicate=not twice) if buffers else []),
    ]
    state, total = model.state_dict(), 0
    for name, tensor in tensors:
        converted = convert and (tensor.is_floating_point() or not whole)
        total += (
            tensor.numel()
            * (dtype.itemsize if converted else tensor.element_size())
            * (not saved_only or name in state)
        )
    return total
