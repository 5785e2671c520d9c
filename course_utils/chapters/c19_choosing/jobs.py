"""What a rank holds in a training step, and which of four causes makes several ranks slow."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from ...measure import alive, memory, throughput


def held(model, x, y):
    """Train `model`, as wrapped or sharded on this rank, with Adam for two steps on this rank's `x, y`.

    Returns the bytes that this rank holds: {"parameters", "gradients", "optimizer state", "activations", "peak": …}.
    Activations are counted after the forward pass, the first three after a step. Every rank must call this.
    """
    # On GPUs Adam would update all parameters at once, and hold one more number for each meanwhile.
    optimizer, activations = torch.optim.Adam(model.parameters(), foreach=False), []

    def step(phase):
        optimizer.zero_grad()
        with memory.Activations(model) as kept:
            loss = F.cross_entropy(model(x), y)
        activations.append(kept.num_bytes)
        loss.backward()
        optimizer.step()

    parameters = list(model.parameters())
    peak = alive.watch_step(step, parameters, x.device).peak
    return alive.held_bytes(parameters, optimizer) | {"activations": activations[-1], "peak": peak}


def training_step(model, x, y, num_parts=1, foreach=None):
    """Return a function that trains `model` with Adam for one step on `x, y`, in `num_parts` micro-batches.

    `foreach=False` updates one parameter after another, as DTensors among other tensors need on GPUs.
    """
    optimizer = torch.optim.Adam(model.parameters(), foreach=foreach)

    def step():
        optimizer.zero_grad()
        for xs, ys in zip(x.chunk(num_parts), y.chunk(num_parts)):
            (F.cross_entropy(model(xs), ys) / num_parts).backward()
        optimizer.step()

    return step


def causes(model, x, y, load=lambda: None, rounds=4):
    """Return why DDP on these ranks is slower than it could be: {cause: share of the time that it takes, from 0}.

    `x, y` is the whole batch, the same on all ranks; `load()` loads a rank's share of it. Each share comes from one
    comparison: a step with loading and without; a step on this rank's share and its part of the time of the whole
    batch; a step with messages and without; the mean rank and the slowest. Every rank must call this. All steps are
    timed in turn, `rounds` times.
    """
    num_ranks = dist.get_world_size()
    mine = [tensor.chunk(num_ranks)[dist.get_rank()] for tensor in (x, y)]
    share = training_step(DistributedDataParallel(model), *mine)
    ways = {
        "with data": lambda: (load(), share()),
        "step": share,
        "silent": training_step(model, *mine),
        "whole": training_step(model, x, y),
    }
    took = {name: timing.median_s for name, timing in throughput.in_turn(ways, rounds).items()}
    mean, slowest = torch.tensor(
        [took["silent"] / num_ranks, took["silent"]], dtype=torch.float64, device=x.device
    ).split(1)
    dist.all_reduce(mean)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    shares = {
        "waits for data": 1 - took["step"] / took["with data"],
        "small share": 1 - took["whole"] / num_ranks / took["silent"],
        "messages": 1 - took["silent"] / took["step"],
        "unequal ranks": 1 - mean.item() / slowest.item(),
    }
    return {cause: max(0.0, share) for cause, share in shares.items()}
