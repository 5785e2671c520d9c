"""Checks of chapter 04: a step in mixed precision, loss scaling, a checkpoint file."""

import copy
import io
import math
import numbers
import os
import re
import tempfile
import zipfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler

from ...checks.expect import (
    Wrong,
    case,
    expect,
    expect_whole,
    explain,
    max_difference,
    same,
    short,
    unchanged,
)
from ...checks.judge import run
from ...checks.watch.calls import forbid, recorded
from ...checks.watch.fake_gpus import try_on_gpus
from .disk import left_by

# ---- 4.1 ----------------------------------------------------------------------------------------------------------

_LR, _SCALE = 0.5, 1024.0
_AMP_STEPS = (  # what the step tests, the factor of its input, max_norm
    ("a step whose gradient is longer than max_norm", 1.0, 0.05),
    ("a step whose gradient is shorter than max_norm", 1.0, 100.0),
    ("a step whose scaled gradient overflows", 2000.0, 0.05),
    ("the step after an overflow", 1.0, 0.05),
)


def check_4_1(amp_step):
    """`amp_step(model, optimizer, scaler, x, y, max_norm)` makes one step in fp16 and clips the unscaled gradient."""
    run(_judge_amp_step, amp_step)
    return "clipped where it was too long, left alone where not, one overflow skipped, and the scale kept up to date."


def _amp_net(device="cpu"):
    return nn.Sequential(nn.Flatten(), nn.Linear(20, 16, device=device), nn.ReLU(), nn.Linear(16, 4, device=device))


def _judge_amp_step(amp_step):
    torch.manual_seed(41)
    model, scaler = _amp_net(), GradScaler("cpu", init_scale=_SCALE)
    optimizer, seen = torch.optim.SGD([{"params": layer.parameters()} for layer in (model[1], model[3])], lr=_LR), []
    _watch_forward(model, seen)
    for what, factor, max_norm in _AMP_STEPS:
        x, y = factor * torch.randn(32, 4, 5), torch.randint(4, (32,))
        scale, before = scaler.get_scale(), [p.detach().clone() for p in model.parameters()]
        loss, true = _true_gradient(model, x, y, scale)
        seen.clear()
        with case(f"in {what}"):
            own = {"model": model, "optimizer.param_groups": optimizer.param_groups}
            with (
                unchanged(x=x, y=y),
                unchanged(**own, allow=("values", "grad")),
                recorded(GradScaler.scale, GradScaler.step, GradScaler.update) as calls,
            ):
                answer = amp_step(model, optimizer, scaler, x, y, max_norm)
            _judge_calls(calls, seen)
            moved = [(a - p.detach()) / _LR for a, p in zip(before, model.parameters())]
            _judge_move(moved, true, max_norm, scale, is_overflow=factor > 1)
            expect(calls["update"], "the scaler was never told that the step is over: its scale stays for ever")
            now = scaler.get_scale()
            expect(
                now == scale / (1 + (factor > 1)),
                f"the scale was {scale:g} and is now {now:g}: who finds the next one?",
            )
            expect(isinstance(answer, float), f"{short(answer)} was returned: the loss is wanted, as a float")
            explain(answer, loss, {f"that is {scale:.0f} times the loss": loss * scale}, close=0.01,
                    said=f"{answer:.4g} was returned", otherwise=f"the batch's loss was {loss:.4g}")  # fmt: skip
    try_on_gpus(lambda devices: _step_on_a_gpu(amp_step, *devices))


def _watch_forward(model, seen):
    def look_around(gradient):
        if torch.is_autocast_enabled("cpu"):
            seen.append("inside")
        if any(p.grad is not None and p.grad.any() for p in model.parameters()):
            seen.append("uncleared")

    def after_first_layer(module, inputs, output):
        if output.requires_grad:  # a forward pass under no_grad does not count
            seen.append(_name(output.dtype))

    def after_forward(module, inputs, output):
        if output.requires_grad:
            output.register_hook(look_around)

    model[1].register_forward_hook(after_first_layer)
    model.register_forward_hook(after_forward)


def _name(dtype):
    return str(dtype).removeprefix("torch.")


def _true_gradient(model, x, y, scale):
    """Return the loss, and the unscaled gradient that fp16 autocast computes with this scale, up to rounding."""
    twin = copy.deepcopy(model)
    for module in twin.modules():
        module._forward_hooks.clear()
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(twin(x), y)
    (scale * loss).backward()
    return loss.item(), [p.grad / scale for p in twin.parameters()]


def _judge_calls(calls, seen):
    types = [each for each in seen if each not in ("inside", "uncleared")]
    expect(types, "the model was not called")
    expect(
        types[-1] == "float16", f"the first layer's output was {types[-1]}, and fp16 is asked: what was autocast told?"
    )
    expect(
        "inside" not in seen, "the backward pass ran inside autocast: only the forward pass and the loss belong there"
    )
    expect(
        "uncleared" not in seen, "the parameters still held gradients of the step before when the backward pass began"
    )
    expect(calls["scale"], "the loss was never scaled")
    half = any(getattr(call["outputs"], "dtype", None) == torch.float16 for call in calls["scale"])
    expect(not half, "the loss itself had 16 bits, and overflows when it is scaled: where is it computed?")
    expect(calls["step"], "the step was not made through the scaler: nobody would look for inf")


def _judge_move(moved, true, max_norm, scale, is_overflow):
    """Judge `moved`, the gradient that the SGD step really used."""
    norm, length = (math.sqrt(sum(g.double().square().sum().item() for g in gradient)) for gradient in (true, moved))
    if is_overflow:
        expect(math.isfinite(length), "the parameters became nan or inf: who looks for inf before a step is made?")
        expect(not length, "the parameters moved: such a step must be skipped")
        return
    expect(length > 0, "nothing was changed")
    slips = (
        ("who divides by the scale once it is clipped?", max_norm / norm / scale),
        ("it was not clipped, or too late", 1),
        ("it was still scaled", scale),
        ("it was still scaled", scale * max_norm / norm),
        ("it was divided by the scale twice", 1 / scale),
    )
    said = (
        f"the gradient that was used had the norm {length:.3g}; the true one has {norm:.3g}, and max_norm is {max_norm}"
    )
    if not _is_multiple(moved, true, min(1, max_norm / norm)):
        reasons = [reason for reason, factor in slips if _is_multiple(moved, true, factor)]
        raise Wrong(f"{said}: {(*reasons, 'is it clipped as a whole?')[0]}")


def _is_multiple(moved, true, factor):
    """Return whether `moved` is `factor` times `true`, up to the rounding of float16 and of float32 weights."""
    return (
        max_difference(moved, [factor * g for g in true])
        < 2e-3 * factor * max(g.abs().max().item() for g in true) + 2e-7
    )


def _step_on_a_gpu(amp_step, device):
    def judge(module, inputs, output):
        is_right = output.dtype == torch.float16 or not output.requires_grad
        expect(
            is_right,
            f"with x on a GPU the first layer's output is {_name(output.dtype)}: for which device is autocast on?",
        )

    model = _amp_net(device)
    model[1].register_forward_hook(judge)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=_LR), GradScaler("cuda", enabled=False)
    amp_step(
        model, optimizer, scaler, torch.randn(32, 4, 5, device=device), torch.randint(4, (32,), device=device), 1.0
    )


# ---- 4.2 ----------------------------------------------------------------------------------------------------------


def check_4_2(largest_scale):
    """`largest_scale(gradients)` returns the largest power of two that keeps all finite in float16, or None."""
    run(_judge_scale, largest_scale)
    return f"{len(_scale_cases())} lists of gradients: each scale is safe, and twice as much would not be."


def _scale_cases():
    generator, inf, nan, of = torch.Generator().manual_seed(42), math.inf, math.nan, torch.tensor
    usual = [torch.rand(50, generator=generator) * 10.0**k for k in (-3, -6, -9)]
    return (
        ("gradients have the usual sizes", usual),
        ("gradients have several dims or none, and lie transposed in memory", [usual[0].view(5, 10).T, of(0.03)]),
        ("the largest is a power of two", [of([1.0, 0.3])]),
        ("the largest in absolute value is negative", [of([0.25, -3.0, 1.0])]),
        ("all gradients are negative", [of([-0.25]), of([-0.03])]),
        ("the largest is float16's largest number", [of([65504.0, 1.0])]),
        ("the largest is more than that, and would be rounded down to it", [of([65510.0])]),
        ("the largest is 65,520", [of([65520.0, 1.0])]),
        ("the largest is a little less than 64", [of([65535 / 1024])]),
        ("the largest is in the last tensor", [of([1e-6]), of([[2e-3, 1e-5]])]),
        ("the largest is more than float16 can hold", [of([3e6]), of([1.0])]),
        ("most gradients are zero", [torch.zeros(5), of([0.0, 5e-8])]),
        ("all gradients are very small", [of([3e-20, -1e-25])]),
        ("a gradient is inf", [of([1.0, inf])]),
        ("a gradient is -inf", [of([1.0]), of([-inf, 1.0])]),
        ("a gradient is nan", [of([1.0]), of([nan, 2.0])]),
        ("the first gradient is nan", [of([nan, 2.0]), of([1.0])]),
    )


def _judge_scale(largest_scale):
    for what, gradients in _scale_cases():
        every = torch.cat([g.flatten() for g in gradients]).double()
        with case(f"where {what}"):
            with unchanged(gradients=gradients):
                scale = largest_scale(gradients)
            if not every.isfinite().all():
                expect(scale is None, f"{short(scale)} was returned: no scale makes that finite")
                continue
            is_number = isinstance(scale, numbers.Real) and not isinstance(scale, bool)  # NumPy's too, but no tensor
            expect(is_number, f"{short(scale)} was returned: a float is wanted")
            expect(0 < scale < math.inf, f"the scale was {scale!r}")
            expect(math.frexp(scale)[0] == 0.5, f"the scale was {scale!r}, no power of two")
            worst, said = every.abs().max().item(), f"the scale was 2^{math.log2(scale):.0f}"
            expect((every * scale).half().isfinite().all(), f"{said}, and {worst:g} times that overflows in float16")
            expect(2 * scale * worst > 65504, f"{said}, but twice as much would be safe too: the largest is {worst:g}")


# ---- 4.3 ----------------------------------------------------------------------------------------------------------

_SAVED_AFTER, _NAME = 5, "a run.2.pt"


def _run_with_adam():
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)


def _run_with_restarts():
    model = nn.Sequential(
        nn.Linear(8, 6), nn.PReLU(), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 3), nn.Dropout(0.1)
    )
    flat, others = ([p for p in model.parameters() if (p.dim() == 1) == is_flat] for is_flat in (True, False))
    optimizer = torch.optim.SGD([{"params": others}, {"params": flat, "lr": 0.2}], lr=0.1, momentum=0.8)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=3, T_mult=2)


_RUNS = {"Adam and StepLR": _run_with_adam, "SGD with momentum and CosineAnnealingWarmRestarts": _run_with_restarts}
_PARTS = {
    "parameters": "the model's parameters are not those that were saved",
    "buffers": "the model's buffers (BatchNorm's statistics) are not those that were saved",
    "averages": "the optimizer's averages are not those that were saved",
    "rates": "the optimizer's rates are not those that were saved",
    "random": "torch's random state is another: dropout and batches will differ",
    "next rates": "the rates of the next steps are others: what does the scheduler know besides the rate?",
    "next losses": "all looks right, yet the losses of the next steps are others",
}


def check_4_3(Checkpoint):
    """`Checkpoint(path, model, optimizer, scheduler)` with `save(step)` and `load()` continues a run bit for bit."""
    with tempfile.TemporaryDirectory() as folder:
        (saved,) = run(_save_runs, Checkpoint, folder)
        (resumed,) = run(_resume_runs, Checkpoint, folder, {what: seen["file"] for what, seen in saved.items()})
    for what, before in saved.items():
        with case(f"a run with {what}, in a new process"):
            step = expect_whole(resumed[what]["step"], "what load() returned")
            expect(step == 2 * _SAVED_AFTER, f"load() returned {step}, and save({2 * _SAVED_AFTER}) was called last")
            for part, reason in _PARTS.items():
                expect(same(before[part], resumed[what][part], 0), f"after load() {reason}")
    with tempfile.TemporaryDirectory() as folder:  # last: it takes longest
        run(_damage_runs, Checkpoint, folder)
    return (
        "two runs continued bit for bit in a new process, and neither a kill nor a full disk damaged the file of "
        "before."
    )


def _save_runs(Checkpoint, folder):
    return {what: _save_run(Checkpoint, *run) for what, *run in _runs(folder)}


def _save_run(Checkpoint, where, path, parts):
    with case(where):
        answer = Checkpoint(path, *parts)
        for step in (_SAVED_AFTER, 2 * _SAVED_AFTER):
            _train(*parts, _SAVED_AFTER)
            seen = _state(*parts)
            with _forbid_the_courses(), unchanged(model=parts[0]):
                answer.save(step)
            now = _state(*parts)
            is_alike = all(same(seen[name], now[name], 0) for name in now)
            expect(is_alike, "save() drew random numbers, or changed the run")
            expect(os.path.isfile(path), "save() left no file at self.path")
            _expect_readable(path)
        seen["file"] = Path(path).read_bytes()
        return seen | _train(*parts, 8)


def _damage_runs(Checkpoint, folder):
    for _, where, path, parts in _runs(folder):
        with case(where):
            answer = Checkpoint(path, *parts)
            _train(*parts, _SAVED_AFTER)
            answer.save(_SAVED_AFTER)
            damage = _damage(lambda answer=answer: answer.save(2 * _SAVED_AFTER), path)
            expect(not damage, damage)


def _runs(folder):
    """Yield each run's name, words for its case, the path to save to, and (model, optimizer, scheduler)."""
    for i, (what, make) in enumerate(_RUNS.items()):
        path = os.path.join(folder, str(i), _NAME)
        os.mkdir(os.path.dirname(path))
        torch.manual_seed(43)
        yield what, f"a run with {what}", path, make()


def _forbid_the_courses():
    return forbid("course_utils.checkpoint", instead="torch.save and torch.load are enough for it")


def _expect_readable(path):
    try:
        torch.load(path, weights_only=True)
    except Exception as error:  # torch.load raises many types
        found = re.search(r"GLOBAL (\S+)", str(error))
        why = f"it holds a {found[1]}, and not only tensors and plain values" if found else type(error).__name__
        raise Wrong(f"the file cannot be read with weights_only=True: {why}") from None


def _damage(save, path):
    """Return why this save may leave neither the old file nor a complete new one, or None if it is safe."""
    old = Path(path).read_bytes()
    for left in left_by(save, path):
        if left.content != old and not _is_whole(left.content):
            what = "no file" if left.content is None else "a damaged file" if left.content else "an empty file"
            fate = "when the disk was full, `{}` left {}" if left.is_full else "a kill at `{}` would leave {}"
            return f"{fate.format(left.line, what)} at self.path: until when is the file of before needed?"
    return None


def _is_whole(content):
    try:
        torch.load(io.BytesIO(content), weights_only=True)
        return not zipfile.is_zipfile(io.BytesIO(content)) or zipfile.ZipFile(io.BytesIO(content)).testzip() is None
    except Exception:  # torch and zipfile raise many types for a damaged file
        return False


def _train(model, optimizer, scheduler, num_steps):
    data = torch.linspace(-1, 1, 8 * 60).view(60, 8).sin()
    losses, rates = [], []
    for _ in range(num_steps):
        chosen = torch.randint(60, (12,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data[chosen]), chosen % 3)
        loss.backward()
        optimizer.step()
        if chosen[0] % 2:  # so that the scheduler does not step with every training step
            scheduler.step()
        losses.append(loss.item())
        rates.append([group["lr"] for group in optimizer.param_groups])
    return {"next losses": losses, "next rates": rates}


def _state(model, optimizer, scheduler):
    return {
        "parameters": [p.detach().clone() for p in model.parameters()],
        "buffers": [b.clone() for b in model.buffers()],
        "averages": [
            v.clone() for p in model.parameters() for v in optimizer.state.get(p, {}).values() if v is not None
        ],
        "rates": [group["lr"] for group in optimizer.param_groups],
        "random": torch.get_rng_state(),
    }


def _resume_runs(Checkpoint, folder, files):
    found = {}
    for i, (what, content) in enumerate(files.items()):
        path = Path(folder, f"resumed {i}", _NAME)  # a folder with this one file of all that save() wrote
        path.parent.mkdir()
        path.write_bytes(content)
        torch.manual_seed(77)
        parts = _RUNS[what]()
        answer = Checkpoint(str(path), *parts)
        with (
            case(f"a run with {what}, in a new process"),
            _forbid_the_courses(),
            unchanged(model=parts[0], allow=("values",)),
        ):
            step = answer.load()
        found[what] = {"step": step, **_state(*parts), **_train(*parts, 8)}
    return found
