"""Checks of chapter 04: a step in mixed precision, a loss scale, a checkpoint file, activation checkpointing."""

import copy
import math
import os
import re
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..measure import memory
from .wrong import expect, judge_in_worker, max_difference, run_answer

# ---- 4.1 ----------------------------------------------------------------------------------------------------------

_LR, _SCALE = 0.5, 1024.0
# (what this step is for, the factor of its input, max_norm)
_AMP_STEPS = (
    ("a step whose gradient is longer than max_norm", 1.0, 0.05),
    ("a step whose gradient is shorter than max_norm", 1.0, 100.0),
    ("a step whose scaled gradient overflows", 2000.0, 0.05),
    ("the step after an overflow", 1.0, 0.05),
)


class _RecordingScaler(torch.amp.GradScaler):
    """A GradScaler that remembers what was asked of it."""

    def __init__(self):
        super().__init__("cpu", init_scale=_SCALE)
        self.calls, self.losses = [], []

    def scale(self, outputs):
        self.calls.append("scale")
        self.losses.append(outputs)
        return super().scale(outputs)

    def step(self, optimizer, *args, **kwargs):
        self.calls.append("step")
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale=None):
        self.calls.append("update")
        return super().update(new_scale)


def check_4_1(amp_step):
    """`amp_step(model, optimizer, scaler, x, y, max_norm)` makes one step in fp16, with the true gradient clipped."""
    judge_in_worker(_judge_amp_step, amp_step)
    return "clipped where it was too long, left alone where not, one overflow skipped, and the scale kept up to date."


def _judge_amp_step(amp_step):
    torch.manual_seed(41)
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=_LR)
    scaler, seen = _RecordingScaler(), []

    def watch(module, inputs, output):
        seen.append(str(output.dtype).removeprefix("torch."))

    def begin_backward(module, inputs, output):
        output.register_hook(look_around)

    def look_around(gradient):
        if torch.is_autocast_enabled("cpu"):
            seen.append("inside")
        if any(p.grad is not None and p.grad.any() for p in model.parameters()):
            seen.append("uncleared")

    model[0].register_forward_hook(watch)
    model.register_forward_hook(begin_backward)
    for what, factor, max_norm in _AMP_STEPS:
        x, y = factor * torch.randn(32, 20), torch.randint(4, (32,))
        scale, before = scaler.get_scale(), [p.detach().clone() for p in model.parameters()]
        loss, true = _true_gradient(model, x, y, scale)
        scaler.calls.clear(), scaler.losses.clear(), seen.clear()
        answer = amp_step(model, optimizer, scaler, x, y, max_norm)
        moved = [(a - p.detach()) / _LR for a, p in zip(before, model.parameters())]
        _judge_calls(scaler, seen, what)
        if factor > 1:
            finite = all(p.isfinite().all() for p in model.parameters())
            expect(finite, f"in {what} the parameters became nan or inf: who looks for inf before a step is made?")
            expect(max_difference(moved, [torch.zeros_like(m) for m in moved]) == 0, f"{what} was made: it must be skipped")
            expect("update" in scaler.calls and scaler.get_scale() == scale / 2, f"after {what} the scale is still "
                   f"{scaler.get_scale():.0f}: it would overflow for ever. Who tells the scaler that a step is over?")
        else:
            _judge_move(moved, true, max_norm, scale, what)
            expect("update" in scaler.calls, f"in {what} the scaler was never told that the step is over: its scale stays for ever")
        expect(isinstance(answer, float), f"{answer!r} was returned: the loss is wanted, as a float")
        scaled = math.isclose(answer, loss * scale, rel_tol=0.01)
        expect(not scaled, f"in {what} {answer:.4g} was returned, which is {scale:.0f} times the loss")
        expect(math.isclose(answer, loss, rel_tol=0.01), f"in {what} {answer:.4g} was returned; the batch's loss was {loss:.4g}")


def _true_gradient(model, x, y, scale):
    """The loss, and the gradient as fp16 autocast computes it with this scale, unscaled: the truth up to rounding."""
    twin = copy.deepcopy(model)
    for module in twin.modules():
        module._forward_hooks.clear()
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(twin(x), y)
    (scale * loss).backward()
    return loss.item(), [p.grad / scale for p in twin.parameters()]


def _judge_calls(scaler, seen, what):
    types = [each for each in seen if each not in ("inside", "uncleared")]
    expect(types, f"in {what} the model was not called")
    expect(types[0] == "float16", f"in {what} the first layer's output was {types[0]}: autocast must be told float16, "
           "for the kind of device where x is")
    expect("inside" not in seen, f"in {what} the backward pass ran inside autocast: only the forward pass and the loss belong there")
    expect("uncleared" not in seen, f"in {what} the parameters still held gradients of the step before when the backward pass began")
    expect("scale" in scaler.calls, f"in {what} the loss was never scaled")
    half = any(getattr(loss, "dtype", None) == torch.float16 for loss in scaler.losses)
    expect(not half, f"in {what} the loss itself had 16 bits, and overflows when it is scaled: autocast computes it in float32, "
           "where autocast reigns")
    expect("step" in scaler.calls, f"in {what} the step was not made through the scaler: nobody would look for inf")


def _judge_move(moved, true, max_norm, scale, what):
    """`moved` is the gradient that the SGD step really used."""
    norm = math.sqrt(sum(g.double().square().sum().item() for g in true))
    length = math.sqrt(sum(m.double().square().sum().item() for m in moved))
    wanted = [g * min(1.0, max_norm / norm) for g in true]

    def is_(other):
        return max_difference(moved, other) < 2e-3 * max(g.abs().max().item() for g in other)

    if is_(wanted):
        return
    expect(length > 0, f"{what} changed nothing")
    tiny = math.isclose(length, max_norm / scale, rel_tol=0.05)
    expect(not tiny, f"in {what} the gradient's norm was {length:.2g}, and max_norm {max_norm} / scale {scale:.0f} is just that: what "
           "was clipped was not the true gradient yet")
    expect(not is_(true), f"in {what} the gradient that was used had the norm {length:.3g}, and max_norm is {max_norm}: it was not clipped, "
           "or too late")
    expect(length < 0.5 * scale * norm, f"in {what} the gradient that was used had the norm {length:.3g}, the true one {norm:.3g}: it was "
           "still scaled")
    expect(False, f"in {what} the gradient that was used had the norm {length:.3g}; the true one has {norm:.3g}, and max_norm is {max_norm}. "
           "Is it clipped as a whole?")


# ---- 4.2 ----------------------------------------------------------------------------------------------------------


def check_4_2(largest_scale):
    """`largest_scale(gradients)` is the largest power of two that leaves all of them finite in float16, or None."""
    judge_in_worker(_judge_scale, largest_scale)
    return f"{len(_scale_cases())} lists of gradients: each scale is safe, and twice as much would not be."


def _scale_cases():
    generator = torch.Generator().manual_seed(42)
    usual = [torch.rand(50, generator=generator) * 10.0**k for k in (-3, -6, -9)]
    return (
        ("gradients have the usual sizes", usual),
        ("the largest in absolute value is negative", [torch.tensor([0.25, -3.0, 1.0])]),
        ("the largest is float16's largest number", [torch.tensor([65504.0, 1.0])]),
        ("the largest is in the last tensor", [torch.tensor([1e-6]), torch.tensor([[2e-3, 1e-5]])]),
        ("a gradient is larger than float16's largest number", [torch.tensor([3e6]), torch.tensor([1.0])]),
        ("most gradients are zero", [torch.zeros(5), torch.tensor([0.0, 5e-8])]),
        ("all gradients are very small", [torch.tensor([3e-20, -1e-25])]),
        ("a gradient is inf", [torch.tensor([1.0, float("inf")])]),
        ("a gradient is nan", [torch.tensor([1.0]), torch.tensor([float("nan"), 2.0])]),
    )


def _judge_scale(largest_scale):
    for what, gradients in _scale_cases():
        scale = largest_scale([g.clone() for g in gradients])
        every = torch.cat([g.flatten() for g in gradients])
        if not every.isfinite().all():
            expect(scale is None, f"where {what}, {scale!r} was returned: no scale makes that finite")
            continue
        expect(isinstance(scale, (int, float)), f"where {what}, {scale!r} was returned: a float is wanted")
        expect(math.isfinite(scale) and scale > 0, f"where {what}, the scale was {scale!r}")
        expect(math.frexp(scale)[0] == 0.5, f"where {what}, the scale was {scale!r}, which is no power of two")
        worst = every.double().abs().max().item()
        expect((every.double() * scale).half().isfinite().all(), f"where {what}, the scale was {scale:g}, and {worst:g} times that "
               "overflows in float16")
        expect(not (every.double() * 2 * scale).half().isfinite().all(), f"where {what}, the scale was {scale:g}, but twice as much "
               f"would be safe too: the largest is {worst:g}")


# ---- 4.3 ----------------------------------------------------------------------------------------------------------

_SAVED_AFTER = 5


def check_4_3(Checkpoint):
    """`Checkpoint(path, model, optimizer, scheduler)` with `save(step)` and `load()` continues a run bit for bit."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.pt")
        (before,) = run_answer(_train_and_save, Checkpoint, path, world_size=1)
        expect(before["written"], "save() left no file at self.path")
        expect(before["readable"] is None, f"the file cannot be read with weights_only=True: {before['readable']}")
        expect(before["undisturbed"], "saving drew random numbers or changed the run: it would not go on as if nothing had happened")
        (after,) = run_answer(_resume, Checkpoint, path, world_size=1)
    expect(type(after["step"]) is int and after["step"] == _SAVED_AFTER,
           f"load() returned {after['step']!r}; save({_SAVED_AFTER}) had been called")
    for part, reason in (
        ("parameters", "the model's parameters are not those that were saved"),
        ("buffers", "the model's buffers (BatchNorm's statistics) are not those that were saved"),
        ("optimizer", "the optimizer's state (Adam's averages) is not the one that was saved"),
        ("rate", "the optimizer's rate is not the one that was saved"),
        ("schedule", "the scheduler does not know how many steps it has made"),
        ("draw", "the next random number is another: dropout and batches will differ"),
    ):
        expect(_same(before[part], after[part]), f"after load() in a new process, {reason}")
    wrong = [i for i, (a, b) in enumerate(zip(before["losses"], after["losses"]), start=1) if a != b]
    expect(not wrong, f"everything looks right after load(), yet loss {wrong[:1]} after it differs")
    expect(before["survived"], "a second save failed half-way (the disk was full), and the file of the first was gone or damaged: "
           "where is it written to?")
    return "a new process continued bit for bit, and a save that failed left the file of before whole."


def _same(a, b):
    if isinstance(a, list):
        return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))
    return a == b


def _make_run(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)


def _train(model, optimizer, scheduler, num_steps):
    data = torch.linspace(-1, 1, 8 * 60).view(60, 8).sin()
    losses = []
    for _ in range(num_steps):
        chosen = torch.randint(60, (12,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data[chosen]), chosen % 3)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def _state(model, optimizer, scheduler):
    averages = [v.clone() for p in model.parameters() for v in optimizer.state.get(p, {}).values()]
    generator = torch.get_rng_state()
    state = {
        "parameters": [p.detach().clone() for p in model.parameters()],
        "buffers": [b.clone() for b in model.buffers()],
        "optimizer": averages,
        "rate": optimizer.param_groups[0]["lr"],
        "schedule": scheduler.last_epoch,
        "draw": torch.rand(()).item(),
    }
    torch.set_rng_state(generator)
    return state


class _FullDisk:
    """Cannot be written: what has been written before it is there already."""

    def __reduce__(self):
        raise OSError(28, "No space left on device")


def _train_and_save(Checkpoint, path):
    _, optimizer, scheduler = run = _make_run(seed=43)
    _train(*run, _SAVED_AFTER)
    seen = _state(*run)
    answer = Checkpoint(path, *run)
    answer.save(_SAVED_AFTER)
    now = _state(*run)
    seen["undisturbed"] = all(_same(seen[name], now[name]) for name in now)
    seen["written"] = os.path.isfile(path)
    if not seen["written"]:
        return seen
    first = Path(path).read_bytes()
    try:
        torch.load(path, weights_only=True)
        seen["readable"] = None
    except Exception as error:  # whatever torch finds in it
        found = re.search(r"GLOBAL (\S+)", str(error))
        seen["readable"] = f"it holds a {found[1]}, and not only tensors and plain values" if found else type(error).__name__
    seen["losses"] = _train(*run, 5)
    optimizer.param_groups[0]["note"] = scheduler.note = _FullDisk()
    try:
        answer.save(2 * _SAVED_AFTER)
    except (OSError, RuntimeError):
        pass
    seen["survived"] = os.path.isfile(path) and Path(path).read_bytes() == first
    Path(path).write_bytes(first)  # for the resuming, which is judged before
    return seen


def _resume(Checkpoint, path):
    run = _make_run(seed=77)
    _train(*run, 1)  # an optimizer that has state already must take on the saved one
    step = Checkpoint(path, *run).load()
    return {"step": step, **_state(*run), "losses": _train(*run, 5)}


# ---- 4.4 ----------------------------------------------------------------------------------------------------------

_NUM_BLOCKS = 5


class _Block(nn.Module):
    """A residual block that counts its forward passes."""

    def __init__(self, width=64):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.num_calls = 0

    def forward(self, x):
        self.num_calls += 1
        return x + self.down(F.gelu(self.up(x)))


def check_4_4(forward_within):
    """`forward_within(blocks, x, budget_bytes)` holds at most the budget, and recomputes as few blocks as that takes."""
    judge_in_worker(_judge_forward, forward_within)
    return "four budgets kept with as few blocks recomputed as possible, equal gradients, and an impossible one refused."


def _judge_forward(forward_within):
    torch.manual_seed(44)
    blocks = [_Block() for _ in range(_NUM_BLOCKS)]
    x = torch.randn(128, 64)
    counted = [_counted(blocks, x, k) for k in range(_NUM_BLOCKS + 1)]  # with k blocks checkpointed
    truth = [p.grad.clone() for block in blocks for p in block.parameters()]
    for k in (0, 2, 3, _NUM_BLOCKS):
        budget = counted[k] + (counted[k - 1] - counted[k] if k else counted[0]) // 3
        case = f"{_NUM_BLOCKS} blocks that hold {counted[0]:,} bytes, within {budget:,}"
        limit, peak_limit, _ = _measure(lambda: _apply(blocks, x, k), blocks)
        held, peak, calls = _measure(lambda: forward_within(list(blocks), x, budget), blocks)
        gradients = [p.grad for block in blocks for p in block.parameters()]
        missing = sum(not g.any() for g in gradients)
        expect(not missing, f"{case}: {missing} of {len(gradients)} parameters got no gradient")
        expect(max_difference(gradients, truth) < 1e-5, f"{case}: the gradients differ from those without checkpointing by "
               f"{max_difference(gradients, truth):.2g}")
        spare = x.nbytes // 2
        expect(held <= limit + spare, f"{case}: {held:,} bytes were held when the forward pass was over, and {limit:,} were possible")
        expect(calls <= k, f"{case}: {calls} blocks were recomputed, and {k} are enough")
        too_high = k == _NUM_BLOCKS and peak > peak_limit + counted[0] // _NUM_BLOCKS // 2
        expect(not too_high, f"{case}: little was held, but {peak:,} bytes were needed at the "
               f"highest moment of the backward pass, and {peak_limit:,} are possible: how much is recomputed in one go?")
    budget = counted[-1] // 2
    try:
        forward_within(list(blocks), x, budget)
    except ValueError:
        return
    expect(False, f"{_NUM_BLOCKS} blocks within {budget:,} bytes: not even recomputing each of them is enough, and no ValueError said so")


def _apply(blocks, x, num_checkpointed):
    for i, block in enumerate(blocks):
        x = checkpoint(block, x, use_reentrant=False) if i < num_checkpointed else block(x)
    return x


def _counted(blocks, x, num_checkpointed):
    model = nn.Sequential(*blocks)
    model.zero_grad()
    with memory.Activations(model) as activations:
        y = _apply(blocks, x, num_checkpointed)
    y.square().mean().backward()
    return activations.num_bytes


def _measure(forward, blocks):
    """(bytes held after `forward()`, most bytes during its backward pass, blocks that ran in the backward pass)."""
    output, calls = None, 0
    for block in blocks:
        for p in block.parameters():
            p.grad = torch.zeros_like(p)  # so that gradients are no part of the measurement

    def step(phase):
        nonlocal output, calls
        with phase("forward"):
            output = forward()
        expect(isinstance(output, torch.Tensor), f"{output!r} was returned: the output of the last block is wanted")
        expect(output.requires_grad, "nothing can flow back from what was returned: it is cut off from the graph")
        calls = -sum(block.num_calls for block in blocks)
        with phase("backward"):
            output.square().mean().backward()
        calls += sum(block.num_calls for block in blocks)

    curves = memory.trace(step)
    return curves["forward"][1][-1], max(curves["backward"][1]), calls
