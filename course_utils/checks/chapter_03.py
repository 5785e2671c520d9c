"""Checks of chapter 03: a clock that does not lie, bytes predicted, gradients accumulated."""

import itertools
import math
import numbers
import queue
import reprlib
import statistics
import threading
import time
import weakref

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..measure import memory
from ..models import DigitsNet, LectureNet
from .wrong import expect, is_whole, judge_in_worker, max_difference

# ---- 3.1 ----------------------------------------------------------------------------------------------------------

_WARM_S, _STEP_S, _HICCUP_S, _BACKLOG_S = 0.1, 0.01, 0.16, 0.3  # long beside what waking a thread takes on a busy machine
_NUM_WARM = 3


class _Device:
    """Does what it is asked later, and in order, as a GPU does: a thread with a queue. Keeps how long each step took."""

    def __init__(self):
        self.took, self.num_waits = [], 0
        self._asked = queue.Queue()
        self._lengths = itertools.chain(
            [_WARM_S] * _NUM_WARM, itertools.cycle([_STEP_S, _STEP_S, _HICCUP_S, _STEP_S, _STEP_S])
        )
        self._asked.put((_BACKLOG_S, False))  # the older work
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self):
        while True:
            length, is_step = self._asked.get()
            begin = time.perf_counter()
            time.sleep(length)
            if is_step:
                self.took.append(time.perf_counter() - begin)
            self._asked.task_done()

    def step(self):
        expect(self.num_under_way < 100_000, "step() was called 100,000 times without waiting: does the loop end?")
        self._asked.put((next(self._lengths), True))

    def synchronize(self):
        self.num_waits += 1
        self._asked.join()

    @property
    def num_under_way(self):
        return self._asked.unfinished_tasks


def check_3_1(images_per_s):
    """`images_per_s(step, batch_size, synchronize)` returns the images per second of a typical step."""
    judge_in_worker(_judge_clock, images_per_s)
    return "a device that works later, hiccups and begins slowly was timed right."


def _judge_clock(images_per_s):
    device, batch_size = _Device(), 32
    answer = images_per_s(device.step, batch_size, device.synchronize)
    left, waits = device.num_under_way, device.num_waits
    is_rate = isinstance(answer, numbers.Real) and math.isfinite(answer) and answer > 0
    expect(is_rate, f"the answer is {reprlib.repr(answer)}, not a number of images per second")
    device.synchronize()
    took = device.took[_NUM_WARM:]
    expect(len(device.took) > 0, "step() was never called")
    said = f"it says {float(answer):,.4g} images/s"
    expect(waits > 0, f"{said}, and never called synchronize(): it timed how long the asking takes")
    expect(left == 0, f"{said}, but {left} pieces of work were still under way when it returned: was the clock read too early?")
    expect(len(took) >= 5, f"{len(device.took)} steps were run, of which the first {_NUM_WARM} are slow: too few to say what is typical")
    truth = batch_size / statistics.median(took)
    if abs(answer / truth - 1) < 0.2:
        return
    said += f", and a typical step of {batch_size} images makes {truth:,.0f}"
    num_images, whole = len(device.took) * batch_size, sum(device.took)
    as_if = {
        1 / statistics.median(took): "that is steps per second",
        1 / truth: "that is seconds per image",
        statistics.median(took): "that is seconds per step",
        truth / 1e3: "that is images per millisecond",
        batch_size / whole: "how many images went through in that time?",
        batch_size / (_BACKLOG_S + whole): "how many images went through in that time?",
        num_images / (_BACKLOG_S + whole): "the older work, the slow first steps and the hiccups are all in it",
        num_images / whole: "the slow first steps and the hiccups are in it",
        batch_size / statistics.fmean(took): "that is a mean, and the hiccups are in it; time each step by itself",
    }
    nearest = min(as_if, key=lambda rate: abs(math.log(rate / answer)))
    expect(abs(answer / nearest - 1) > 0.2, f"{said}: {as_if[nearest]}")
    expect(answer < truth, f"{said}: that is too many; is the device done at both readings of the clock?")
    expect(False, f"{said}: that is too few; which steps, and what else, lie between the readings of the clock?")


# ---- 3.2 ----------------------------------------------------------------------------------------------------------

_OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": torch.optim.Adam,
}
_BLOCK = 512  # bytes; PyTorch's allocator for GPUs hands out multiples of it


def check_3_2(predict_bytes):
    """`predict_bytes(shapes, optimizer)` returns the bytes of weights, gradients, optimizer state, weights on a GPU."""
    judge_in_worker(_judge_bytes, predict_bytes)
    return "three networks and three optimizers, each agrees to the byte with what PyTorch holds."


def _judge_bytes(predict_bytes):
    torch.manual_seed(3)
    nets = {"the lecture's network": LectureNet(), "DigitsNet": DigitsNet(), "a network with a single bias": nn.Linear(300, 1)}
    for (what, net), (name, make) in itertools.product(nets.items(), _OPTIMIZERS.items()):
        optimizer = make(net.parameters())
        for p in net.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        sizes = [memory.num_bytes([p]) for p in net.parameters()]
        truth = {
            "weights": memory.weight_bytes(net),
            "gradients": memory.gradient_bytes(net),
            "optimizer state": memory.optimizer_bytes(optimizer),
            "weights on a GPU": sum(math.ceil(size / _BLOCK) * _BLOCK for size in sizes),
        }
        answer = predict_bytes([tuple(p.shape) for p in net.parameters()], name)
        expect(isinstance(answer, dict), f"the answer is {answer!r}, not a dict")
        for key in truth:
            expect(key in answer, f"the answer has no {key!r}; its keys are {sorted(map(str, answer))}")
        for key, right in truth.items():
            given, where = answer[key], f"{what}, {name}, {key!r}"
            expect(is_whole(given), f"{where}: {given!r} is not a whole number; bytes are")
            if given == right:
                continue
            expect(given * 4 != right, f"{where}: {given:,} is the number of numbers; how many bytes has each?")
            if key == "optimizer state":
                expect(right > 0, f"{where}: {given:,}, but plain SGD keeps nothing from step to step")
                expect(
                    given != 2 * truth["weights"],
                    f"{where}: {given:,}, and PyTorch holds {right - given} bytes more: besides its averages Adam counts its steps",
                )
                expect(
                    name != "adam" or given != 2 * truth["weights"] + 4,
                    f"{where}: {given:,}, and PyTorch holds {right:,}: one step counter, or one for each tensor?",
                )
                expect(name != "adam" or given != truth["weights"], f"{where}: {given:,} is one number for each parameter; Adam keeps more")
            if key == "weights on a GPU":
                expect(given != truth["weights"], f"{where}: {given:,}: nothing was rounded up to a multiple of {_BLOCK}")
                together = math.ceil(truth["weights"] / _BLOCK) * _BLOCK
                expect(given != together, f"{where}: {given:,} is the sum rounded up; each tensor is allocated by itself")
                down = sum(size // _BLOCK * _BLOCK for size in sizes)
                expect(given != down, f"{where}: {given:,}: the tensors were rounded down, and must have room")
                more = sum((size // _BLOCK + 1) * _BLOCK for size in sizes)
                expect(given != more, f"{where}: {given:,}: a tensor that is a multiple of {_BLOCK} already needs no more")
            expect(False, f"{where}: {given:,}, and PyTorch holds {right:,}")


# ---- 3.3 ----------------------------------------------------------------------------------------------------------


def check_3_3(predict_activations):
    """`predict_activations(C, S)` returns (a, c), so that the forward pass keeps a * batch_size + c bytes."""
    judge_in_worker(_judge_activations, predict_activations)
    return "four widths and image sizes, each agrees to the byte with what autograd keeps."


def _judge_activations(predict_activations):
    for C, S in ((8, 16), (3, 8), (32, 10), (1, 12)):
        net = nn.Sequential(
            nn.Conv2d(3, C, 3, padding=1), nn.BatchNorm2d(C), nn.ReLU(), nn.Flatten(), nn.Linear(C * S * S, 10)
        )
        kept = []
        for batch_size in (2, 3):
            x, y = torch.randn(batch_size, 3, S, S), torch.randint(10, (batch_size,))
            with memory.Activations(net) as activations:
                F.cross_entropy(net(x), y)
            kept.append(activations.num_bytes)
        a = kept[1] - kept[0]
        c = kept[0] - 2 * a
        answer = predict_activations(C, S)
        expect(
            isinstance(answer, (tuple, list)) and len(answer) == 2 and all(map(is_whole, answer)),
            f"the answer is {answer!r}, not a pair (a, c) of whole numbers",
        )
        where, maps = f"C = {C}, S = {S}", 4 * C * S * S
        if answer[0] != a:
            said = f"{where}: a is {answer[0]:,}, and a further image keeps {a:,} bytes more"
            for apart, reason in (
                (a - a // 4, "is a number of numbers meant as bytes?"),
                (-maps, "some tensor of C maps counts twice: what ReLU keeps is what the next layer keeps"),
                (maps, "some tensor of C maps is missing: BatchNorm's input and ReLU's output are two tensors"),
                (3 * S * S * 4, "is the image itself in it?"),
                (8, "what is kept of the labels?"),
                (4, "a label has 8 bytes"),
                (40, "what does the loss keep?"),
                (48, "what does the loss keep, of its input and of the labels?"),
                (-8 * C, "BatchNorm's statistics are there once per batch, not once per image"),
            ):
                expect(a - answer[0] != apart, f"{said}: {reason}")
            expect(False, f"{said}; go through the layers one by one")
        if answer[1] != c:
            said = f"{where}: a is right; c is {answer[1]:,}, and {c:,} bytes do not depend on the batch"
            expect(answer[1] != 4, f"{said}: what does BatchNorm keep for each channel?")
            expect(answer[1] != 4 * C + 4, f"{said}: BatchNorm keeps two numbers for each channel")
            expect(answer[1] != 8 * C, f"{said}: the loss keeps something of its own, as in the text")
            expect(False, f"{said}: what is kept once per batch?")


# ---- 3.4 ----------------------------------------------------------------------------------------------------------


def check_3_4(accumulate):
    """`accumulate(model, optimizer, x, y, micro_batch_size)` makes the step that the whole batch would make."""
    judge_in_worker(_judge_accumulation, accumulate)
    return "micro-batches of 1, 3, 8 and more than all samples make the whole batch's step, one at a time."


def _judge_accumulation(accumulate):
    for micro_batch_size in (8, 3, 1, 100):
        _judge_steps(accumulate, 10 if micro_batch_size != 8 else 16, micro_batch_size)


class _Kept:
    """A tensor that autograd keeps, in something that a WeakSet takes."""

    def __init__(self, tensor):
        self.tensor = tensor


def _judge_steps(accumulate, num_samples, micro_batch_size):
    """Two steps in a row, held against two on the whole batch."""
    where = f"{num_samples} samples, micro_batch_size {micro_batch_size}"
    torch.manual_seed(34)
    x, y = torch.randn(num_samples, 6, dtype=torch.float64), torch.randint(3, (num_samples,))
    model, truth = (nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double() for _ in range(2))
    truth.load_state_dict(model.state_dict())
    optimizer, reference = (torch.optim.SGD(net.parameters(), lr=0.5) for net in (model, truth))
    for turn in ("first", "second"):
        reference.zero_grad()
        F.cross_entropy(truth(x), y).backward()
        right = [p.grad.clone() for p in truth.parameters()]
        reference.step()
        sizes, grads, seen, waiting = [], [], [], []
        alive = weakref.WeakSet()  # what autograd keeps, until backward() or the end of the graph lets it go

        def keep(tensor):
            kept = _Kept(tensor)
            if tensor.dim() > 1:
                alive.add(kept)
            return kept

        def see_input(module, inputs):
            waiting.append(len(alive))
            sizes.append(len(inputs[0]))

        def see_step(stepping, *_):
            if stepping is optimizer:
                seen.append(sum(sizes))
                grads.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])

        hooks = [model.register_forward_pre_hook(see_input), register_optimizer_step_post_hook(see_step)]
        try:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept.tensor):
                accumulate(model, optimizer, x, y, micro_batch_size)
        finally:
            for hook in hooks:
                hook.remove()
        expect(grads, f"{where}: the optimizer made no step")
        expect(len(grads) == 1, f"{where}: the optimizer made {len(grads)} steps; the whole batch makes one")
        expect(sizes, f"{where}: the model was never called")
        expect(max(sizes) <= micro_batch_size, f"{where}: {max(sizes)} samples went through the model at once")
        expect(sum(sizes) >= num_samples, f"{where}: only {sum(sizes)} of {num_samples} samples went through the model")
        expect(seen[0] >= num_samples, f"{where}: the optimizer stepped when {seen[0]} of {num_samples} samples had gone through the model")
        expect(not any(waiting), f"{where}: a forward pass began while an earlier one's activations were still waiting for backward(), or kept after it")
        _compare(grads[0], right, sizes, where, turn, num_samples)
        apart = max_difference([p.detach() for p in model.parameters()], [p.detach() for p in truth.parameters()])
        expect(apart < 1e-9, f"{where}: the gradients were right, but the parameters moved elsewhere (max difference {apart:.2g})")


def _compare(grads, right, sizes, where, turn, num_samples):
    expect(all(g is not None for g in grads), f"{where}: at the optimizer's step a p.grad is None")
    apart = max_difference(grads, right)
    if apart < 1e-9:
        return
    said = f"{where}: in the {turn} call the gradient is not the whole batch's (max difference {apart:.2g})"
    ratios = {round((g.norm() / r.norm()).item(), 6) for g, r in zip(grads, right)}
    if len(ratios) == 1:
        (ratio,) = ratios
        expect(abs(ratio - len(sizes)) > 1e-5, f"{said}: it is {len(sizes)} times as large, a sum of {len(sizes)} means")
        expect(abs(ratio - num_samples) > 1e-5, f"{said}: it is {num_samples} times as large, a sum over samples")
    expect(turn == "first", f"{said}; the first call was right: does something stay in p.grad from it?")
    expect(len(set(sizes)) == 1, f"{said}: does the last, smaller micro-batch weigh as much as the others?")
    expect(max(ratios) > 1, f"{said}; is the last thing added to p.grad the only one left in it?")
    expect(False, f"{said}: does each micro-batch go with its own labels, once?")
