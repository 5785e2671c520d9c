"""Costs of a network's stages: bytes held, time of each pass, and the parts of a micro-batch's time."""

import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

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
    """Return {column: {row: value}} as text, with the sum of each column."""
    rows = list(next(iter(columns.values())))
    lines = [f"{unit:18s}" + "".join(f"{name:>13s}" for name in columns)]
    lines += [f"{row:18s}" + "".join(f"{column[row]:13,.{digits}f}" for column in columns.values()) for row in rows]
    sums = [sum(column.values()) for column in columns.values()]
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


def time_split(stages, x, y):
    """Run the stages on x's device with the backward pass in two parts; return two lists of seconds, one per stage.

    The first is for the gradient of the stage's input, the second for the gradients of its weights. Each layer of a
    stage has its own graph, so that the second part does not repeat the first.
    """
    graphs, h, input_s, weight_s = [], x, [], []
    for stage in stages:
        graphs.append([])
        for layer in stage if isinstance(stage, nn.Sequential) else [stage]:
            cut = h.detach().requires_grad_(h is not x)
            h = layer(cut)
            graphs[-1].append((layer, cut, h))
    logits = h.detach().requires_grad_()
    F.cross_entropy(logits, y).backward()
    gradient = logits.grad
    for graph in reversed(graphs):
        begin, waiting = now(x.device), []
        for layer, cut, output in reversed(graph):
            waiting.append((list(layer.parameters()), output, gradient))
            if cut.requires_grad:
                (gradient,) = torch.autograd.grad(output, cut, gradient, retain_graph=True)
        middle = now(x.device)
        for parameters, output, pull in waiting:
            if parameters:
                output.backward(pull, inputs=parameters)
        input_s.insert(0, middle - begin)
        weight_s.insert(0, now(x.device) - middle)
    return input_s, weight_s


def measure(stages, x, y, sizes, rounds=12):
    """Return {size: {"forward_s": […], "backward_s": […], "input_s": […], "weight_s": […]}}, a value per stage.

    These are the seconds of one micro-batch of each size (in samples), named as `pipeline.place` names them. Every
    round takes all `sizes` in turn; one untimed round comes first. Each value is the median over the rounds.
    """
    names = "forward_s", "backward_s", "input_s", "weight_s"

    def measure_one(size):
        batch = stages, x[:size], y[:size]
        return *time_passes(*batch), *time_split(*batch)

    found = _rounds(measure_one, sizes, rounds)
    return {
        size: {name: [statistics.median(each) for each in zip(*way)] for name, way in zip(names, zip(*runs))}
        for size, runs in found.items()
    }


def account(costs):
    """Return {"4 samples": {pass: milliseconds}, …} of all stages together, for `table`; `costs` are `measure`'s."""
    parts = {"forward": "forward_s", "backward": "backward_s"}
    return {
        f"{size} samples": {part: 1e3 * sum(cost[name]) for part, name in parts.items()} for size, cost in costs.items()
    }


def adding_ms(model, repeats=15):
    """Return the median milliseconds of adding a gradient to every `p.grad` of `model`."""
    parameters = list(model.parameters())
    sums, others = [torch.zeros_like(p) for p in parameters], [torch.ones_like(p) for p in parameters]

    def add():
        for total, other in zip(sums, others):
            total += other

    return call_ms(add, repeats)[1]


def _rounds(measure_one, sizes, rounds):
    """Return {size: [measure_one(size) of each round]}, without a first warm-up round.

    Every round takes all sizes in turn.
    """
    found = {size: [] for size in sizes}
    for _ in range(rounds + 1):
        for size in sizes:
            found[size].append(measure_one(size))
    return {size: runs[1:] for size, runs in found.items()}
