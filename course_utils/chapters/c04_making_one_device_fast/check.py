"""Checks of chapter 04: a step in mixed precision, the largest loss scale, loading beside the step."""

import copy
import math
import numbers

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler

from ...checks.expect import (
    Wrong,
    case,
    expect,
    explain,
    max_difference,
    short,
    unchanged,
)
from ...checks.judge import run
from ...checks.watch.calls import recorded
from ...checks.watch.fake_gpus import try_on_gpus

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

_PHASES = (  # what the phases test, their ms
    ("loading is most of the step", {"load": 90.0, "copy": 4.0, "forward": 7.0, "backward": 13.0, "update": 2.0}),
    ("the computation is most of the step", {"load": 12.0, "copy": 3.0, "forward": 20.0, "backward": 39.0}),
    ("copying is most of the step", {"load": 10.0, "copy": 31.0, "forward": 5.0, "clip": 1.5, "backward": 9.0}),
    ("nothing is copied", {"load": 7.0, "copy": 0.0, "forward": 23.0, "backward": 20.0, "update": 1.0}),
)
_WAYS = ((0, False), (1, False), (2, False), (8, False), (1, True), (3, True), (8, True))  # workers, prefetching


def check_4_3(step_ms):
    """`step_ms(phases_ms, num_workers, prefetching)` returns the ms of a step in a long run with loader workers."""
    run(_judge_step_ms, step_ms)
    return f"{len(_PHASES)} steps, each with {len(_WAYS)} ways to load: what sets the pace was found each time."


def _judge_step_ms(step_ms):
    for what, phases in _PHASES:
        for num_workers, prefetching in _WAYS:
            with case(f"where {what}, {_loading(num_workers, prefetching)}"):
                with unchanged(phases_ms=phases):
                    answer = step_ms(phases, num_workers, prefetching)
                is_number = isinstance(answer, numbers.Real) and not isinstance(answer, bool)
                expect(is_number, f"{short(answer)} was returned: a number of ms is wanted")
                load, copy = phases["load"], phases["copy"]
                rest = sum(phases.values()) - load - copy
                truth = _pace(load, copy, rest, num_workers, prefetching)
                explain(answer, truth, _slow_paces(load, copy, rest, num_workers, prefetching, phases),
                        said=f"{short(answer)} was returned for {phases}",
                        otherwise="what is done one after the other, and what at the same time?")  # fmt: skip


def _loading(num_workers, prefetching):
    return f"with {num_workers} worker{'s' * (num_workers != 1)}{' and prefetching' * prefetching}"


def _pace(load, copy, rest, num_workers, prefetching):
    if not num_workers:
        return load + copy + rest
    return max(load / num_workers, copy, rest) if prefetching else max(load / num_workers, copy + rest)


def _slow_paces(load, copy, rest, num_workers, prefetching, phases):
    ahead, usual = load / max(1, num_workers), sum(phases.get(name, 0) for name in ("forward", "backward", "update"))
    fewer = {"are all other phases counted?": _pace(load, copy, usual, num_workers, prefetching)}
    if not num_workers:
        alone = max(load, copy + rest)
        return fewer | {"who loads while the loop computes, if there are no workers?": alone, "who loads?": copy + rest}
    return fewer | {
        "does the loop wait until a batch is loaded that was begun long before?": ahead + copy + rest,
        "several workers load several batches at the same time: how often is one ready?":
            _pace(load, copy, rest, 1, prefetching),
        "who copies if nothing is prefetched?": max(ahead, copy, rest),
        "prefetching copies while the device computes": max(ahead, copy + rest),
        "may the copies take longer than all the rest?": max(ahead, rest),
        "do the workers copy, too?": max((load + copy) / num_workers, rest),
        "that is what the quickest part would allow": min(ahead, copy + rest),
    }  # fmt: skip
