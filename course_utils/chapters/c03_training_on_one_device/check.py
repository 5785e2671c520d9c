"""Checks of chapter 03: honest timing, memory in bytes, gradient accumulation."""

import itertools
import math
import statistics
import weakref

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...checks.expect import (
    case,
    expect,
    expect_number,
    expect_row,
    expect_whole,
    explain,
    max_difference,
    not_a,
    unchanged,
)
from ...checks.judge import run
from ...measure import memory
from ...models import DigitsNet, LectureNet
from .late_device import LateDevice, PlayedClock, RealClock

# ---- 3.1 ----------------------------------------------------------------------------------------------------------

_DEVICES = ((32, 0.003, 0.08), (5, 0.002, 0.0))  # images per step, seconds of a typical step, seconds of older work
_NUM_WARM, _WARM = 3, 10  # number of slow first steps, and by what factor they are slow
# Factors of the later steps, repeated: any 3 in a row have median 1, and most blocks of up to 10 steps hold no hiccup.
_LATER = (0.1, 1, 20, *[1] * 37)
_STARTS = range(0, len(_LATER), 5)  # the factor that a run begins with: in one of the runs, 5 steps hold a hiccup


def check_3_1(images_per_s):
    """`images_per_s(step, batch_size, synchronize)` returns the images per second of a typical step."""
    for device in _DEVICES:
        with case(f"steps of {device[0]} images"):
            run(_judge_clocks, images_per_s, *device)
    return "devices that work later, hiccup and begin slowly were timed right."


def _judge_clocks(images_per_s, *device):
    for start in _STARTS:
        _judge_clock(images_per_s, *device, _LATER[start:] + _LATER[:start])


def _judge_clock(images_per_s, batch_size, typical_s, older_work_s, factors):
    for clock in PlayedClock(), RealClock():
        lengths = (typical_s * length for length in itertools.chain([_WARM] * _NUM_WARM, itertools.cycle(factors)))
        device = LateDevice(clock, lengths, older_work_s)
        with clock.shown_to(images_per_s), unchanged():
            answer = images_per_s(device.step, batch_size, device.synchronize)
        if clock.num_readings:
            break
    answer = expect_number(answer)
    expect(0 < answer < math.inf, f"the answer is {answer}, and no number of images per second")
    expect(device.num_steps, "step() was never called")
    said, left = f"it says {answer:,.4g} images/s", device.num_not_waited_for
    expect(device.has_waited, f"{said}, and never called synchronize(): it timed how long the asking takes")
    expect(
        not left,
        f"{said}, but nobody waited for the last of its {device.num_steps} steps: was the clock read too early?",
    )
    later = [wait for wait in device.waits if wait.num_before >= _NUM_WARM]
    num_later = sum(wait.num_steps for wait in later) or device.num_steps - _NUM_WARM
    expect(
        num_later >= 3,
        f"{said}, from {max(num_later, 0)} steps without the slow first ones: too few to say what is typical",
    )
    # On the real clock, steps of equal length differ slightly.
    typical = [
        wait.seconds / wait.num_steps for wait in later if math.isclose(wait.asked, wait.num_steps * typical_s)
    ] or [typical_s]
    if 0.95 * min(typical) < batch_size / answer < 1.05 * max(typical):
        return
    truth = batch_size / statistics.median(typical)
    many = "is the device done at both readings of the clock?"
    few = "which steps, and what else, lie between the readings of the clock?"
    explain(
        answer,
        truth,
        _slips(device, later, batch_size, truth),
        close=0.03,
        said=f"{said}, {answer / truth:.3g} times what is right",
        otherwise=many if answer > truth else few,
    )


def _slips(device, later, batch_size, truth):
    def rates(waits):
        return [batch_size * wait.num_steps / wait.seconds for wait in waits]

    def mean(waits):
        return (
            batch_size * sum(wait.num_steps for wait in waits) / sum(wait.seconds for wait in waits) if waits else None
        )

    first, enough = device.waits[: -len(later)], len(later) >= 3
    older = "" if device.is_idle_at_first else "the older work, "
    return {
        "that is steps per second": truth / batch_size,
        "that is seconds per image": 1 / truth,
        "that is seconds per step": batch_size / truth,
        "that is images per millisecond": truth / 1e3,
        "there is a hiccup in most of its blocks: are they short enough?": statistics.median(rates(later))
        if enough
        else None,
        "that is the quickest of its steps: is it a typical one?": max(rates(later)) if enough else None,
        "that is the slowest of its steps: is it a typical one?": min(rates(later)) if enough else None,
        "how many images went through in that time?": mean(device.waits) / device.num_steps,
        f"{older}the slow first steps and the hiccups are in it": mean(device.waits),
        "that is a mean: what do the hiccups do to it?": mean(later),
        "that is a mean of rates: what do a few quick steps do to it?": statistics.fmean(rates(later))
        if enough
        else None,
        "that is one of the slow first steps": statistics.median(rates(first)) if first else None,
    }


# ---- 3.2 ----------------------------------------------------------------------------------------------------------

_OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": torch.optim.Adam,
}
_BLOCK = 512  # bytes; PyTorch's GPU allocator hands out multiples of it


def _shapes(net):
    return [tuple(p.shape) for p in net.parameters()]


def check_3_2(predict_bytes):
    """`predict_bytes(shapes, optimizer)` returns the bytes of weights, gradients, optimizer state, weights on a GPU."""
    networks = {
        "the lecture's network": _shapes(LectureNet()),
        "DigitsNet": _shapes(DigitsNet()),
        "a network with a single bias": _shapes(nn.Linear(300, 1)),
        "a tensor of five dims and one of exactly 512 bytes": [
            (4, 2, 3, 3, 3),
            (128,),
            (129,),
            (127,),
            (1, 1, 7, 5),
            (129,),
            (),
        ],
        "a network of more bytes than float32 counts": [(4099, 4111), (2,)],
    }
    cases = [
        (what, shapes, name, _counted_bytes(shapes, name)) for what, shapes in networks.items() for name in _OPTIMIZERS
    ]
    run(_judge_bytes, predict_bytes, cases)
    return (
        f"{len(networks)} networks and {len(_OPTIMIZERS)} optimizers, each agrees to the byte with what PyTorch holds."
    )


def _counted_bytes(shapes, optimizer):
    model = nn.ParameterList(torch.zeros(shape, device="meta") for shape in shapes)
    optimizer = _OPTIMIZERS[optimizer](model.parameters())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    return {
        "weights": memory.weight_bytes(model),
        "gradients": memory.gradient_bytes(model),
        "optimizer state": memory.optimizer_bytes(optimizer),
        "weights on a GPU": sum(_rounded(p.nbytes) for p in model.parameters()),
    }


def _rounded(num_bytes):
    return math.ceil(num_bytes / _BLOCK) * _BLOCK


def _judge_bytes(predict_bytes, cases):
    # One network's bytes may agree with a mistake by chance, so a mistake must explain what all of them were given.
    answers, failure = [], None
    for what, shapes, optimizer, truth in cases:
        try:
            with case(f"{what}, {optimizer}"):
                answers.append(_predicted(predict_bytes, shapes, optimizer, truth))
        except Exception as error:  # raised again once those before it have been judged
            failure = error
            break
    for (what, shapes, optimizer, truth), answer in zip(cases, answers):
        with case(f"{what}, {optimizer}"):
            for key, right in truth.items():
                alike = [
                    (_mistakes(key, other, theirs[key], shapes), told[key])
                    for (_, shapes, other, theirs), told in zip(cases, answers)
                    if other == optimizer or key != "optimizer state"
                ]
                known = {
                    reason: value
                    for reason, value in _mistakes(key, optimizer, right, shapes).items()
                    if all(mistakes[reason] == told for mistakes, told in alike)
                }
                given = answer[key]
                explain(given, right, known, close=0, said=f"its {key!r} is {given:,}, {_apart(given, right)}")
    if failure is not None:
        raise failure


def _predicted(predict_bytes, shapes, optimizer, keys):
    """Return the answer, a dict of ints with these keys."""
    with unchanged(shapes=shapes):
        answer = predict_bytes(shapes, optimizer)
    expect(isinstance(answer, dict), f"the answer is {not_a(answer, 'a dict')}")
    for key in keys:
        expect(key in answer, f"the answer has no {key!r}; its keys are {sorted(map(str, answer))}")
    return {key: expect_whole(answer[key], f"its {key!r}") for key in keys}


def _apart(given, right):
    return f"{abs(given - right):,} bytes too {'many' if given > right else 'few'}"


def _mistakes(key, optimizer, right, shapes):
    sizes = [4 * math.prod(shape) for shape in shapes]
    whole, down = sum(sizes), sum(size // _BLOCK * _BLOCK for size in sizes)
    states = {
        "sgd": {"what must plain SGD remember from step to step?": whole},
        "momentum": {"what does momentum remember of each parameter?": 0},
        "adam": {
            "besides its averages Adam counts its steps": 2 * whole,
            "is there one step counter, or one for each tensor?": 2 * whole + 4,
            "how many bytes has a step counter?": 2 * whole + 8 * len(sizes),
            "Adam keeps more than one number for each parameter": whole,
        },
    }
    suspects = {
        "optimizer state": states[optimizer],
        "weights on a GPU": {
            f"nothing was rounded up to a multiple of {_BLOCK}": whole,
            "that is the sum rounded up; each tensor is allocated by itself": _rounded(whole),
            "the tensors were rounded down, and must have room": down,
            f"a tensor that is a multiple of {_BLOCK} already needs no more": down + len(sizes) * _BLOCK,
        },
    }
    return {"is that the number of numbers? How many bytes has each?": right // 4, **suspects.get(key, {})}


# ---- 3.3 ----------------------------------------------------------------------------------------------------------

_SIZES = ((8, 16), (3, 8), (32, 10), (1, 12), (5, 7), (2, 1), (17, 3))  # C, S


def check_3_3(predict_activations):
    """`predict_activations(C, S)` returns (a, c), so that the forward pass keeps a * batch_size + c bytes."""
    run(_judge_activations, predict_activations)
    return f"{len(_SIZES)} widths and image sizes, each agrees to the byte with what autograd keeps."


def _judge_activations(predict_activations):
    for C, S in _SIZES:
        with case(f"C = {C}, S = {S}"):
            two, three = (_counted_activations(C, S, batch_size) for batch_size in (2, 3))
            a, c = three - two, 3 * two - 2 * three
            answer = expect_row(predict_activations(C, S), 2, of="whole numbers, a and c")
            got_a, got_c = (expect_whole(value, what) for value, what in zip(answer, "ac"))
            maps, numbers = 4 * C * S * S, "is a number of numbers meant as bytes?"
            apart = {
                "some tensor of C maps counts twice: what ReLU keeps is what the next layer keeps": maps,
                "some tensor of C maps is missing: BatchNorm's input and ReLU's output are two tensors": -maps,
                "is the image itself in it?": -12 * S * S,
                "what is kept of the labels?": -8,
                "a label has 8 bytes": -4,
                "what does the loss keep?": -40,
                "what does the loss keep, of its input and of the labels?": -48,
                "BatchNorm's statistics are there once per batch, not once per image": 8 * C,
            }
            explain(
                got_a,
                a,
                {numbers: a // 4} | {reason: a + more for reason, more in apart.items()},
                close=0,
                said=f"a is {got_a:,}, {_apart(got_a, a)}",
                otherwise="go through the layers one by one",
            )
            once = {
                numbers: c // 4,
                "what does BatchNorm keep for each channel?": 4,
                "BatchNorm keeps two numbers for each channel": 4 * C + 4,
                "the loss keeps something of its own, as in the text": 8 * C,
                "what does the loss keep, and what does BatchNorm?": 0,
                "BatchNorm's weight and bias are parameters, and counted as such": 16 * C + 4,
            }
            explain(
                got_c,
                c,
                once,
                close=0,
                said=f"a is right; c is {got_c:,}, {_apart(got_c, c)}",
                otherwise="what is kept once per batch?",
            )


def _counted_activations(C, S, batch_size):
    net = nn.Sequential(
        nn.Conv2d(3, C, 3, padding=1), nn.BatchNorm2d(C), nn.ReLU(), nn.Flatten(), nn.Linear(C * S * S, 10)
    )
    with memory.Activations(net) as activations:
        F.cross_entropy(net(torch.randn(batch_size, 3, S, S)), torch.randint(10, (batch_size,)))
    return activations.num_bytes


# ---- 3.4 ----------------------------------------------------------------------------------------------------------

_PARTS = ((16, 8), (10, 3), (10, 1), (10, 100), (9, 8), (7, 7))  # samples, micro_batch_size


def check_3_4(accumulate):
    """`accumulate(model, optimizer, x, y, micro_batch_size)` makes the step of the whole batch."""
    run(_judge_accumulation, accumulate)
    return "micro-batches of 1, 3, 7, 8 and more than all samples make the whole batch's step, one at a time."


def _judge_accumulation(accumulate):
    for num_samples, size in _PARTS:
        torch.manual_seed(34)
        model, truth = (
            nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double() for _ in range(2)
        )
        truth.load_state_dict(model.state_dict())
        optimizer, reference = (torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.5) for net in (model, truth))
        before = None
        for turn in ("first", "second", "third"):
            with case(f"{num_samples} samples, micro_batch_size {size}, {turn} call"):
                x = torch.randn(3, 2, num_samples, dtype=torch.float64).transpose(0, 2)  # (num_samples, 2, 3)
                y = torch.randint(3, (num_samples,))
                own = {"model": model, "optimizer.param_groups": optimizer.param_groups}
                with unchanged(x=x, y=y), unchanged(**own, allow=("values", "grad")):
                    seen = _Accumulation(accumulate, model, optimizer, x, y, size)
                _judge_passes(seen, num_samples, size)
                parts = [_gradient(truth, *part) for part in zip(x.split(size), y.split(size))]
                right = _gradient(truth, x, y)
                _judge_gradient(seen.gradients[0], right, parts, [len(part) for part in x.split(size)], before)
                reference.step()
                before = right
                apart = max_difference(
                    [p.detach() for p in model.parameters()], [p.detach() for p in truth.parameters()]
                )
                expect(
                    apart < 1e-9,
                    f"the gradients were right, but the parameters moved elsewhere (max difference {apart:.2g})",
                )


def _gradient(model, x, y):
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    return [p.grad.clone() for p in model.parameters()]


class _Kept:
    """Wraps a tensor that autograd keeps, so that a WeakSet can hold it."""

    def __init__(self, tensor):
        self.tensor = tensor


class _Accumulation:
    """What one call does: its forward passes and its optimizer steps.

    For each forward pass: `sizes`, its samples, and `waiting`, the tensors still kept for earlier backward passes. For
    each step of the optimizer: `seen`, the samples so far, and `gradients`.
    """

    def __init__(self, accumulate, model, optimizer, x, y, size):
        self.sizes, self.waiting, self.gradients, self.seen = [], [], [], []
        self._alive = weakref.WeakSet()  # kept by autograd, until backward() or the graph's end frees it

        def see_input(module, inputs):
            self.waiting.append(len(self._alive))
            self.sizes.append(len(inputs[0]))

        def see_step(stepping, *_):
            if stepping is optimizer:
                self.seen.append(sum(self.sizes))
                self.gradients.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])

        hooks = [model.register_forward_pre_hook(see_input), register_optimizer_step_post_hook(see_step)]
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._keep, lambda kept: kept.tensor):
                accumulate(model, optimizer, x, y, size)
        finally:
            for hook in hooks:
                hook.remove()

    def _keep(self, tensor):
        kept = _Kept(tensor)
        if tensor.dim() > 1:
            self._alive.add(kept)
        return kept


def _judge_passes(seen, num_samples, micro_batch_size):
    num_steps, sizes = len(seen.gradients), seen.sizes
    expect(num_steps, "the optimizer made no step")
    expect(num_steps == 1, f"the optimizer made {num_steps} steps; the whole batch makes one")
    expect(sizes, "the model was never called")
    expect(max(sizes) <= micro_batch_size, f"{max(sizes)} samples went through the model at once")
    expect(sum(sizes) >= num_samples, f"only {sum(sizes)} of {num_samples} samples went through the model")
    early = f"the optimizer stepped when {seen.seen[0]} of {num_samples} samples had gone through the model"
    expect(seen.seen[0] >= num_samples, early)
    kept = "a forward pass began while an earlier one's activations were still waiting for backward(), or kept after it"
    expect(not any(seen.waiting), kept)


def _judge_gradient(got, right, parts, sizes, before):
    expect(all(g is not None for g in got), "at the optimizer's step a p.grad is None")
    num_parts, num_samples = len(sizes), sum(sizes)

    def combined(*weights):
        return [sum(w * g for w, g in zip(weights, gradients)) for gradients in zip(*parts)]

    suspects = {
        f"it is a sum of {num_parts} means": combined(*[1] * num_parts),
        f"it is a sum over {num_samples} samples, and no mean": combined(*sizes),
        "does the last, smaller micro-batch weigh as much as the others?": combined(*[1 / num_parts] * num_parts),
        f"every piece's sum was divided by {sizes[0]}": combined(*[size / sizes[0] for size in sizes]),
        "the last thing added to p.grad is the only one left in it": combined(
            *[0] * (num_parts - 1), sizes[-1] / num_samples
        ),
        "does something stay in p.grad from the call before?": before and [g + b for g, b in zip(right, before)],
    }
    explain(
        got,
        right,
        suspects,
        said=f"the gradient is not the whole batch's (max difference {max_difference(got, right):.2g})",
        otherwise="does each micro-batch go with its own labels, once?",
    )
