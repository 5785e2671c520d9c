"""Checks of chapter 06: a network over two devices, micro-batches, schedules, balanced stages."""

import functools
import itertools
import math
import numbers
import random
import reprlib
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..parallel import pipeline
from .wrong import EQUAL, Wrong, expect, is_whole, judge_in_worker, max_difference

# ---- 6.1 ----------------------------------------------------------------------------------------------------------

_NAMES = ("first", "second", "third", "fourth")
_MIXES, _HAS_CROSSED = "an operation mixes tensors on", "has everything crossed that the other side needs?"
_BOTH_ARROWS = "does the gradient come back along both arrows that cross the cut?"
_SIDES = dict(zip(_NAMES, ("device0", "device0", "device1", "device1")))


class _Placed(nn.Module):
    """A layer that knows its place, and refuses what comes from another: `meta` alone lets some operations pass."""

    def __init__(self, name, device):
        super().__init__()
        self.name, self.num_calls, self.num_moves = name, 0, 0
        self.linear = nn.Linear(6, 6).double().to(device)
        self.place = torch.device(device)

    def forward(self, x):
        self.num_calls += 1
        expect(isinstance(x, torch.Tensor), f"`{self.name}` was given a {type(x).__name__}, not a tensor")
        where = f"`{self.name}` is on {_SIDES[self.name]}, here {self.place}, and was given a tensor on {x.device}"
        expect(x.device == self.place, f"{where}: what was to bring it there?")
        out = self.linear(x) + torch.tanh(x)  # keeps x for the backward pass, and not its own result
        self.node = out.grad_fn  # where the output is in autograd's graph
        return out

    def _apply(self, *args, **kwargs):  # every .to, .cpu and .cuda of a module comes through here
        self.num_moves += 1
        return super()._apply(*args, **kwargs)


class _OneDevice(TorchDispatchMode):
    """Notes the first operation, other than a copy, whose tensors are in two places."""

    def __init__(self):
        super().__init__()
        self.mixed = None

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.dim()]
        places = sorted({str(t.device) for t in tensors})
        if len(places) > 1 and self.mixed is None and operation.overloadpacket is not torch.ops.aten.copy_:
            self.mixed = " and ".join(places)
        return operation(*args, **(kwargs or {}))


def check_6_1(forward_with_skip):
    """`forward_with_skip(x, first, second, third, fourth, device0, device1)`: two devices, a skip across the cut."""
    judge_in_worker(_judge_skip, forward_with_skip)
    return "every tensor was brought where it is needed, and output and gradients are those of one device."


def _judge_skip(forward_with_skip):
    runs = {}
    # `meta` is a second device that every machine has: first it stands for device 1, then for both, with x outside.
    for device0, device1 in (("cpu", "meta"), ("meta", "meta")):
        modules, out = _run_skip(forward_with_skip, device0, device1)
        where = f"with device0 = {device0} and device1 = {device1}"
        expect(isinstance(out, torch.Tensor), f"{where} the answer is {reprlib.repr(out)}, not a tensor")
        expect(out.device.type == device1, f"{where} the answer is on {out.device}, and belongs on device1")
        for module in modules:
            expect(module.num_moves == 0, f"`{module.name}` was moved: the modules are in their places already, tensors travel")
            expect(module.num_calls == 1, f"`{module.name}` was called {module.num_calls} times, and should be called once")
        runs[where] = out, modules
    _judge_skip_values(forward_with_skip)
    for where, (out, (first, second, *_)) in runs.items():  # with one device a transfer is nothing, and loses nothing
        is_whole_path = _is_reached(out.grad_fn, second.node) and _is_reached(second.node, first.node)
        is_whole = is_whole_path and _is_reached(out.grad_fn, first.node, avoid=second.node)
        expect(is_whole, f"{where} gradients cannot reach all modules, though they do on one device: {_BOTH_ARROWS}")


def _is_reached(node, goal, avoid=None):
    """Whether a backward pass that begins at `node` comes to `goal`, and not only by way of `avoid`."""
    waiting, seen = [node], {None, avoid}
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
    return goal is not None and goal in seen


def _run_skip(forward_with_skip, device0, device1):
    modules = [_Placed(name, device0 if _SIDES[name] == "device0" else device1) for name in _NAMES]
    x, watch = torch.randn(5, 6, dtype=torch.float64), _OneDevice()
    try:
        with watch:
            out = forward_with_skip(x, *modules, torch.device(device0), torch.device(device1))
    except RuntimeError as error:
        if isinstance(error, NotImplementedError) and not str(error):
            raise  # the stub's
        expect(watch.mixed is None, f"{_MIXES} {watch.mixed}: {_HAS_CROSSED}")
        expect("copy out of meta" not in str(error), "a tensor is moved from device1 back: nothing has to go that way")
        expect(False, f"an operation fails: {str(error).splitlines()[0]}")
    expect(watch.mixed is None, f"{_MIXES} {watch.mixed}: {_HAS_CROSSED}")
    return modules, out


def _skip_variants(x, first, second, third, fourth):
    """The right output, and what comes out with something left out or exchanged: {reason: output}."""
    a = first(x)
    b = second(a)
    c = third(b)
    return fourth(c + a), {
        "the skip connection is missing": fourth(c),
        "the skip hands on x itself, not what `first` made of it": fourth(c + x),
        "the skip is taken after `second`": fourth(c + b),
        "the sum is made after `fourth`": fourth(c) + a,
        "the sum is made before `third`": fourth(third(b + a)),
    }


def _judge_skip_values(forward_with_skip):
    cpu = torch.device("cpu")
    for seed in (61, 62):
        torch.manual_seed(seed)
        modules = [_Placed(name, cpu) for name in _NAMES]
        parameters = [p for module in modules for p in module.parameters()]
        x = torch.randn(5, 6, dtype=torch.float64)
        given = x.clone()
        out = forward_with_skip(x, *modules, cpu, cpu)
        expect(isinstance(out, torch.Tensor), f"on the CPU the answer is {reprlib.repr(out)}, not a tensor")
        expect(torch.equal(x, given), "x was changed: it belongs to the caller")
        right, variants = _skip_variants(x, *modules)
        apart = max_difference([out.detach()], [right.detach()])
        if apart > EQUAL:
            for reason, variant in variants.items():
                expect(max_difference([out.detach()], [variant.detach()]) > EQUAL, f"the output is wrong: {reason}")
            expect(False, f"the output is wrong (max difference {apart:.2g}); write the formula from the inside out")
        expect(out.requires_grad, "the output has no autograd graph: something on the way, such as detach(), cut it off")
        pull = torch.randn_like(out)
        truth = torch.autograd.grad((right * pull).sum(), parameters)
        try:
            grads = torch.autograd.grad((out * pull).sum(), parameters, allow_unused=True)
        except RuntimeError as error:
            expect("inplace" not in str(error), "on one device the backward pass fails: a tensor that it needs was changed in place. "
                                                "Where a tensor is there already, .to() hands back the tensor itself")
            raise
        without = [name for name, grad in zip(_NAMES, grads[::2]) if grad is None]
        expect(not without, f"no gradient reaches {' and '.join(f'`{name}`' for name in without)}: autograd was cut on the way, "
                            "by detach() or the like")
        apart = max_difference(list(grads), list(truth))
        expect(apart < EQUAL, f"the output is right and the gradients are not (max difference {apart:.2g}): {_BOTH_ARROWS}")


# ---- 6.2 ----------------------------------------------------------------------------------------------------------

_UNLABELLED = -100
# (samples, micro-batches, which samples have no label)
_BATCHES = ((12, 3, ()), (10, 4, ()), (10, 6, ()), (10, 4, (0, 7, 8, 9)), (9, 2, (1, 2, 3, 4)), (7, 7, (2, 5)), (8, 1, (3,)))


def check_6_2(accumulate):
    """`accumulate(model, x, y, num_micro_batches)` leaves the whole batch's gradient in `p.grad`, and returns its loss."""
    judge_in_worker(_judge_micro_batches, accumulate)
    return f"{len(_BATCHES)} batches, some that do not divide and some with missing labels, give the whole batch's loss and gradient."


def _judge_micro_batches(accumulate):
    for where, loss, truth in [_judge_gradient(accumulate, *case) for case in _BATCHES]:
        is_number = isinstance(loss, (numbers.Real, np.ndarray, torch.Tensor)) and torch.as_tensor(loss).numel() == 1
        expect(is_number, f"{where}: the gradients are right; what came back is {reprlib.repr(loss)}, and not the loss")
        loss = torch.as_tensor(loss).item()
        said = f"{where}: the gradients are right; the loss that came back is {loss:.6g}"
        expect(not math.isnan(loss), f"{said}: what is the mean over a micro-batch without any label?")
        expect(abs(loss - truth) < 1e-6, f"{said}, and the whole batch's is {truth:.6g}")


def _judge_gradient(accumulate, num_samples, num_micro_batches, unlabelled):
    """Run one case, and return what it is, the loss that came back, and the right one."""
    where = f"{num_samples} samples, {num_micro_batches} micro-batch{'es' * (num_micro_batches > 1)}"
    where += f", no label for samples {', '.join(map(str, unlabelled))}" if unlabelled else ""
    torch.manual_seed(62)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    parameters = list(model.parameters())
    x, y = torch.randn(num_samples, 6, dtype=torch.float64), torch.randint(3, (num_samples,))
    y[list(unlabelled)] = _UNLABELLED
    given, seen = (x.clone(), y.clone(), [p.detach().clone() for p in parameters]), []

    def note(module, inputs):
        seen.extend(torch.atleast_2d(x.detach().clone()) for x in inputs if isinstance(x, torch.Tensor))

    hook = model[0].register_forward_pre_hook(note)  # on the first layer: a model's own forward() passes its hooks by
    try:
        loss = accumulate(model, x, y, num_micro_batches)
    finally:
        hook.remove()
    expect(torch.equal(x, given[0]) and torch.equal(y, given[1]), f"{where}: x or y was changed, and both belong to the caller")
    expect(all(map(torch.equal, given[2], parameters)), f"{where}: the parameters have changed; only the gradients should")
    sizes = [len(part) for part in seen]
    expect(sizes, f"{where}: the model was never called, and what came back is {reprlib.repr(loss)}")
    kinds = {str(part.dtype)[6:] for part in seen}
    expect(kinds == {"float64"}, f"{where}: {' and '.join(kinds)} went through the model, though all that was given is float64")
    missing = [i for i in range(num_samples) if not any((part == x[i]).all(1).any() for part in seen)]
    lost = [i for i in missing if i not in unlabelled]
    expect(not lost, f"{where}: sample {lost[:1]} never went through the model")
    pieces = f"{where}: the micro-batches that went through the model have sizes {sizes}"
    expect(all(sizes), f"{pieces}, and none may be empty")
    largest = math.ceil(num_samples / num_micro_batches)
    expect(max(sizes) <= largest, f"{pieces}, and none should be larger than {largest}")
    enough = len(sizes) == num_micro_batches or num_micro_batches - len(missing) <= len(sizes) < num_micro_batches and missing
    expect(enough, f"{pieces}, and there should be {num_micro_batches} of them")
    expect(sum(sizes) == num_samples - len(missing), f"{pieces}: some samples went through it more than once")
    expect(all(p.grad is not None for p in parameters), f"{where}: afterwards a p.grad is None")
    _expect_gradient(where, model, x, y, sizes, [p.grad for p in parameters])
    return where, loss, F.cross_entropy(model(x), y).item()


def _expect_gradient(where, model, x, y, sizes, got):
    parameters = list(model.parameters())
    truth = torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
    apart = max_difference(got, list(truth))
    if apart < EQUAL:
        return
    said = f"{where}: the gradient is not the whole batch's (max difference {apart:.2g})"
    question = f"{said}: by what is each micro-batch's loss weighted?"
    expect(sum(sizes) == len(y), question)
    pieces, B, M = list(zip(x.split(sizes), y.split(sizes))), len(y), len(sizes)
    sums = [torch.autograd.grad(F.cross_entropy(model(a), b, reduction="sum"), parameters) for a, b in pieces]
    labels = [max(1, int((b != _UNLABELLED).sum())) for _, b in pieces]  # 1 for none: its sum is 0 anyway
    for weights, reason in (
        ([1 / n for n in labels], f"it is a sum of {M} means"),
        ([1 / n / M for n in labels], "every micro-batch counts alike, though they differ in how many labels they have"),
        ([size / n / B for size, n in zip(sizes, labels)], "micro-batches are weighted by samples, of which not all count"),
        ([1] * M, "it is a sum over samples, and the loss is a mean"),
        ([1 / B] * M, "the sum is divided by the number of samples, of which not all count"),
    ):
        for last_only in (False, True):
            weights = [0] * (M - 1) + weights[-1:] if last_only else weights
            combined = [sum(w * g for w, g in zip(weights, grads)) for grads in zip(*sums)]
            why = "only the last micro-batch's is left in it" if last_only else reason
            expect(max_difference(got, combined) > EQUAL, f"{said}: {why}")
    right_last = [0] * (M - 1) + [1 / int((y != _UNLABELLED).sum())]
    combined = [sum(w * g for w, g in zip(right_last, grads)) for grads in zip(*sums)]
    expect(max_difference(got, combined) > EQUAL, f"{said}: only the last micro-batch's is left in it")
    expect(False, question)


# ---- 6.3 ----------------------------------------------------------------------------------------------------------

_PIPELINES = ((4, 8), (1, 1), (1, 5), (2, 1), (2, 2), (4, 2), (3, 7), (5, 5), (6, 4), (8, 16))


def check_6_3(emit_1f1b):
    """`emit_1f1b(num_stages, num_micro_batches)` returns a schedule with 1F1B's bubble and 1F1B's memory."""
    judge_in_worker(_judge_schedules, emit_1f1b)
    return f"{len(_PIPELINES)} sizes: complete, without deadlock, and with 1F1B's memory and bubble."


def _judge_schedules(emit_1f1b):
    for K, M in _PIPELINES:
        where = f"{K} stage{'s' * (K > 1)}, {M} micro-batch{'es' * (M > 1)}"
        schedule = _tasks(_call_alone(emit_1f1b, K, M), where)
        try:
            pipeline.validate(schedule, K, M)
        except ValueError as error:
            raise Wrong(f"{where}: {error}") from None
        for stage, held in enumerate(pipeline.peak_activations(schedule)):
            most = min(K - stage, M)
            expect(held <= most, f"{where}: stage {stage} holds {held} micro-batches at once, and 1F1B at most {most}: how many "
                                 "forwards may it begin with?")
        idle, best = pipeline.bubble_fraction(pipeline.place(schedule)), (K - 1) / (M + K - 1)
        expect(idle < best + EQUAL, f"{where}: memory is right, but the stages are idle for {idle:.1%} of the time, and 1F1B's for "
                                     f"{best:.1%}: does a stage wait where it could begin another forward?")


def _call_alone(emit_1f1b, K, M):
    """What the answer returns. Raises Wrong if it has called a function of `course_utils.parallel.pipeline`."""
    called = []

    def watch(frame, event, argument):
        if event == "call" and frame.f_globals.get("__name__", "").startswith(pipeline.__name__):
            called.append(frame.f_code.co_name)

    sys.setprofile(watch)
    try:
        answer = emit_1f1b(K, M)
    finally:
        sys.setprofile(None)
    expect(not called, f"course_utils.parallel.pipeline was called, its {' and '.join(called[:1])}: write the list without it")
    return answer


def _tasks(schedule, where):
    expect(isinstance(schedule, (list, tuple)), f"{where}: the answer is {reprlib.repr(schedule)}, not a list of tasks")
    for task in schedule:
        is_task = isinstance(task, (tuple, list)) and len(task) == 3 and is_whole(task[0]) and is_whole(task[1])
        expect(is_task and isinstance(task[2], str), f"{where}: {reprlib.repr(task)} is no task (stage, micro_batch, phase)")
    return [pipeline.Task(int(stage), int(micro_batch), phase) for stage, micro_batch, phase in schedule]


# ---- 6.4 ----------------------------------------------------------------------------------------------------------


def check_6_4(balance):
    """`balance(costs, num_stages)` returns sizes of stages whose dearest one is as cheap as can be."""
    judge_in_worker(_judge_balance, balance)
    return f"{len(_layer_costs())} networks, none can be cut better, and too many stages are refused."


def _layer_costs():
    draw = random.Random(64)
    fixed = [
        ([3, 1, 1, 1, 3], 2), ([1, 1, 1, 1, 1, 1], 3), ([9, 1, 1, 1], 2), ([1, 1, 1, 9], 3), ([5.5], 1), ([2, 7, 4], 1),
        ([6, 4, 4, 8, 5], 3), ([4, 3, 2, 1], 4), ([0.0, 0.0, 5.0, 0.0, 5.0, 0.0], 3), ([1, 2, 3, 4, 5, 6, 7, 8, 9], 3),
        ([12.2, 4.6, 7.2, 7.3, 0.2], 2), ([2, 6, 3, 4, 7, 5], 3), ([9, 4, 5, 5, 3, 5, 9, 6], 4),
    ]  # fmt: skip
    drawn = [([draw.choice((1, 2, 3, 5, 8, 13)) * scale for _ in range(n)], K)
             for n, K, scale in ((12, 4, 1), (11, 5, 0.37), (10, 3, 1), (12, 6, 0.01), (7, 6, 1), (12, 2, 1.5))]
    return fixed + drawn


def _judge_balance(balance):
    for costs, num_stages in _layer_costs():
        where = f"costs {costs} in {num_stages} stage{'s' * (num_stages > 1)}"
        given = list(costs)
        sizes = balance(given, num_stages)
        expect(given == costs, f"{where}: the list of costs was changed, and it belongs to the caller")
        expect(
            isinstance(sizes, (list, tuple)) and all(map(is_whole, sizes)),
            f"{where}: the answer is {reprlib.repr(sizes)}, not a list of whole numbers",
        )
        said = f"{where}: the answer is {list(sizes)}"
        expect(len(sizes) == num_stages, f"{said}, which are {len(sizes)} stages")
        expect(all(size >= 1 for size in sizes), f"{said}, and every stage needs a layer at least")
        expect(sum(sizes) == len(costs), f"{said}: these are {sum(sizes)} layers, and there are {len(costs)}")
        ends = list(itertools.accumulate(sizes))
        dearest, best = max(sum(costs[end - size : end]) for end, size in zip(ends, sizes)), _cheapest(tuple(costs), num_stages)
        expect(dearest <= best + EQUAL, f"{said}: its dearest stage costs {dearest:.4g}, and {best:.4g} is possible")
    for num_layers, num_stages in ((2, 3), (1, 5)):
        _expect_refusal(balance, [1.0] * num_layers, num_stages)


def _expect_refusal(balance, costs, num_stages):
    where = f"{len(costs)} layer{'s' * (len(costs) > 1)} in {num_stages} stages"
    try:
        answer = balance(costs, num_stages)
    except ValueError:
        return
    except NotImplementedError:
        raise
    except Exception as error:  # noqa: BLE001 whatever the answer raises
        raise Wrong(f"{where}: a ValueError should say that there are too few layers; {type(error).__name__} was raised") from None
    raise Wrong(f"{where}: the answer is {reprlib.repr(answer)}, and a ValueError should be raised")


@functools.cache
def _cheapest(costs, num_stages):
    """The smallest cost that the dearest of `num_stages` stages can have."""
    if num_stages == 1:
        return sum(costs)
    ways = range(num_stages - 1, len(costs))  # where the last stage begins
    return min(max(_cheapest(costs[:begin], num_stages - 1), sum(costs[begin:])) for begin in ways)
