"""What a rank holds in a training step, and which of four causes makes several ranks slower than one."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from ...measure import alive, memory, turns


def held(model, x, y):
    """Train `model` (this rank's, as it is wrapped or sharded) with Adam for two steps on its own `x, y`.

    Returns the bytes that this rank holds: {"parameters", "gradients", "optimizer state", "activations", "peak": …}.
    Each but the last is what there is of it after a step, or after its forward pass. Every rank calls it alike.
    """
    optimizer, activations = torch.optim.Adam(model.parameters()), []

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


def training_step(model, x, y, num_parts=1):
    """A function that trains `model` with Adam for one step on `x, y`, in so many micro-batches."""
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        optimizer.zero_grad()
        for xs, ys in zip(x.chunk(num_parts), y.chunk(num_parts)):
            (F.cross_entropy(model(xs), ys) / num_parts).backward()
        optimizer.step()

    return step


def causes(model, x, y, load=lambda: None, rounds=4):
    """Why DDP on these ranks may be slower than it could be: {cause: the share of the time that it takes, from 0 up}.

    `x, y` is the whole batch, the same on all ranks; `load()` stands for what brings a rank its share of it. Each share
    is that of a comparison of its own: with the same step without loading; with this rank's share of the time for the
    whole batch; with the same step without messages; of the mean rank with the slowest. Every rank calls it alike.
    All are timed in turn, `rounds` times.
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
    # The quickest of several: whatever interferes only adds time.
    took = {
        name: min(timing.seconds) for name, timing in turns.in_turn(ways, rounds=rounds, warmup=1, repeats=1).items()
    }
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
