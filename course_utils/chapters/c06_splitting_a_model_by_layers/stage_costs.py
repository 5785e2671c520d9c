"""Costs of a network's stages: bytes held, time of each pass, and the parts of a micro-batch's time."""

import statistics
import time

import torch
import torch.nn.functional as F

from ...measure import memory
from ...measure.throughput import now


def held_bytes(stages, devices, x, y):
    """Train one step with Adam, stage i on `devices[i]`; return the bytes that each device holds.

    Returns {"device 0": {"weights": …, "gradients": …, "optimizer state": …, "activations": …}, …}, counted as by
    `memory.training_bytes`.
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
    """Return {column: {row: value}} as text, with the sum of each column.

    Rows named "of that, …" are not added.
    """
    rows = list(next(iter(columns.values())))
    lines = [f"{unit:18s}" + "".join(f"{name:>13s}" for name in columns)]
    lines += [f"{row:18s}" + "".join(f"{column[row]:13,.{digits}f}" for column in columns.values()) for row in rows]
    sums = [sum(value for row, value in column.items() if not row.startswith("of that")) for column in columns.values()]
    return "\n".join([*lines, f"{'together':18s}" + "".join(f"{total:13,.{digits}f}" for total in sums)])


def crossings(part, step):
    """Run `step()`; return [("forward", shape, bytes), ("backward", shape, bytes)] of `part`'s output."""
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
    """Return two medians in ms: until `call()` returns, and until all devices have finished its work."""
    seconds = []
    for _ in range(repeats):
        begin = now()
        call()
        seconds.append((time.perf_counter() - begin, now() - begin))
    return tuple(1e3 * statistics.median(each) for each in zip(*seconds))


def time_passes(stages, x, y):
    """Run the stages in order on x's device; return two lists, each stage's forward and backward seconds."""
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
    """Return {size: (forward seconds, backward seconds)} of one micro-batch of each size, a value per stage.

    Every round takes all `sizes` (in samples) in turn; one untimed round comes first. Each value is the median over the
    rounds.
    """
    found = _rounds(lambda size: time_passes(stages, x[:size], y[:size]), sizes, rounds)
    return {
        size: tuple([statistics.median(each) for each in zip(*one_way)] for one_way in zip(*runs))
        for size, runs in found.items()
    }


def account(model, x, y, sizes, rounds=12):
    """Split the time of one micro-batch: return {"4 samples": {part: milliseconds}, …}, medians as in `measure`.

    "forward" is the forward pass, "input gradients" the backward pass with frozen weights, "weight gradients" the extra
    time of the full backward pass. "of that, adding" is only adding a gradient to every `p.grad`.
    """
    found = _rounds(lambda size: _parts_of_step(model, x[:size].detach(), y[:size]), sizes, rounds)
    parts = {}
    for size, runs in found.items():
        forward, frozen, backward, adding = (1e3 * statistics.median(each) for each in zip(*runs))
        parts[f"{size} samples"] = {
            "forward": forward,
            "input gradients": frozen,
            "weight gradients": backward - frozen,
            "of that, adding": adding,
        }
    return parts


def _rounds(measure_one, sizes, rounds):
    """Return {size: [measure_one(size) of each round]}, without a first warm-up round.

    Every round takes all sizes in turn.
    """
    found = {size: [] for size in sizes}
    for _ in range(rounds + 1):
        for size in sizes:
            found[size].append(measure_one(size))
    return {size: runs[1:] for size, runs in found.items()}


def _parts_of_step(model, x, y):
    """Return seconds: forward pass, backward pass with frozen weights, full backward pass, adding to `p.grad`."""
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
