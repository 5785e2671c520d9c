"""What the stages of a network cost: the bytes that each holds, the time of each pass,
and what a micro-batch pays for.
"""

import statistics
import time

import torch
import torch.nn.functional as F

from ...measure import memory
from ...measure.throughput import now


def held_bytes(stages, devices, x, y):
    """Train one step with Adam, stage i on `devices[i]`; what each device holds, as `memory.training_bytes` counts it.

    Returns {"device 0": {"weights": …, "gradients": …, "optimizer state": …, "activations": …}, …}.
    """
    optimizers, activations, h = [torch.optim.Adam(stage.parameters()) for stage in stages], [], x
    for i, (stage, device) in enumerate(zip(stages, devices)):
        h = h.to(device)
        with memory.Activations(stage) as kept:
            h = stage(h)
            if i == len(stages) - 1:
                loss = F.cross_entropy(h, y.to(device))
        activations.append(kept.num_bytes)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    return {
        f"device {i}": {
            "weights": memory.weight_bytes(stage),
            "gradients": memory.gradient_bytes(stage),
            "optimizer state": memory.optimizer_bytes(optimizer),
            "activations": num_bytes,
        }
        for i, (stage, optimizer, num_bytes) in enumerate(zip(stages, optimizers, activations))
    }


def table(columns, unit, digits=0):
    """A table as text: {column: {row: value}}, and the sum of each column, but for rows named "of that, …"."""
    rows = list(next(iter(columns.values())))
    lines = [f"{unit:18s}" + "".join(f"{name:>13s}" for name in columns)]
    lines += [f"{row:18s}" + "".join(f"{column[row]:13,.{digits}f}" for column in columns.values()) for row in rows]
    sums = [sum(value for row, value in column.items() if not row.startswith("of that")) for column in columns.values()]
    return "\n".join([*lines, f"{'together':18s}" + "".join(f"{total:13,.{digits}f}" for total in sums)])


def crossings(part, step):
    """Run `step()`; what left `part` forward and came back to it:
    [("forward", shape, bytes), ("backward", shape, bytes)].
    """
    found = []

    def note(direction, tensor):
        found.append((direction, tuple(tensor.shape), tensor.nbytes))

    def see(module, inputs, output):
        note("forward", output)
        output.register_hook(lambda gradient: note("backward", gradient))

    with part.register_forward_hook(see):
        step()
    return found


def call_ms(call, repeats=15):
    """Medians of the milliseconds until `call()` has returned, and until all devices have done
    what it asked of them.
    """
    seconds = []
    for _ in range(repeats):
        begin = now()
        call()
        seconds.append((time.perf_counter() - begin, now() - begin))
    return tuple(1e3 * statistics.median(each) for each in zip(*seconds))


def time_passes(stages, x, y):
    """Run the stages one after the other where `x` is; two lists, the seconds of each one's
    forward and backward pass.
    """
    forward, backward, inputs, outputs = [], [], [x], []
    for stage in stages:
        begin = now(x.device)
        outputs.append(stage(inputs[-1]))
        forward.append(now(x.device) - begin)
        inputs.append(outputs[-1].detach().requires_grad_())
    F.cross_entropy(inputs[-1], y).backward()  # gives the last output its gradient
    for output, cut in reversed(list(zip(outputs, inputs[1:]))):
        begin = now(x.device)
        output.backward(cut.grad)
        backward.insert(0, now(x.device) - begin)
    return forward, backward


def measure(stages, x, y, sizes, rounds=12):
    """{size: (forward seconds, backward seconds)} of a micro-batch of each of `sizes` samples, a value for each stage.

    Every round takes all sizes in turn; one that does not count comes before. What interferes only adds time, so the
    quickest of the rounds is returned, for each pass of each stage.
    """
    found = _rounds(lambda size: time_passes(stages, x[:size], y[:size]), sizes, rounds)
    return {
        size: tuple([min(each) for each in zip(*one_way)] for one_way in zip(*runs)) for size, runs in found.items()
    }


def account(model, x, y, sizes, rounds=12):
    """Where one micro-batch's time goes: {"4 samples": {what: milliseconds}, …}, the quickest of rounds as in
    `measure`.

    "forward" is the forward pass, "input gradients" the backward pass with frozen weights, and "weight gradients" what
    the whole backward pass takes longer. "of that, adding" is adding a gradient to every `p.grad`, alone.
    """
    found = _rounds(lambda size: _parts_of_step(model, x[:size].detach(), y[:size]), sizes, rounds)
    parts = {}
    for size, runs in found.items():
        forward, frozen, backward, adding = (1e3 * min(each) for each in zip(*runs))
        parts[f"{size} samples"] = {
            "forward": forward,
            "input gradients": frozen,
            "weight gradients": backward - frozen,
            "of that, adding": adding,
        }
    return parts


def _rounds(measure_one, sizes, rounds):
    """{size: [measure_one(size) of each round]}: every round takes all sizes in turn,
    and the first one does not count.
    """
    found = {size: [] for size in sizes}
    for _ in range(rounds + 1):
        for size in sizes:
            found[size].append(measure_one(size))
    return {size: runs[1:] for size, runs in found.items()}


def _parts_of_step(model, x, y):
    """Seconds: the forward pass, the backward pass with frozen weights, the whole one, and adding to every gradient."""
    parameters, backward_s = list(model.parameters()), []
    for trains in (False, True):
        for p in parameters:
            p.requires_grad_(trains)
        begin = now(x.device)
        loss = F.cross_entropy(model(x.detach().requires_grad_()), y)
        middle = now(x.device)
        loss.backward()
        backward_s.append(now(x.device) - middle)
    others = [torch.ones_like(p) for p in parameters]
    start = now(x.device)
    for p, other in zip(parameters, others):
        p.grad += other
    return middle - begin, *backward_s, now(x.device) - start
