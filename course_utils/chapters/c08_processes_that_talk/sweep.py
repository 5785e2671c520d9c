"""Time several ways to do one thing at many sizes, in workers."""

import torch

from ... import hardware
from ...measure import throughput

MIB = 2**20


def time_ways(backend, make_ways, sizes, rounds, repeats):
    """Return this rank's {(way, bytes): seconds of each repeat}.

    `make_ways(x)` returns {name: function} for a tensor x of each of `sizes` (bytes), on this rank's GPU for "nccl",
    else on the CPU. All take turns in `rounds` rounds. From 1 MiB on there are fewer repeats, since large messages vary
    less.
    """
    device, steps, turns = hardware.rank_device() if backend == "nccl" else torch.device("cpu"), {}, {}
    for num_bytes in sizes:
        dtype = torch.float32 if num_bytes % 4 == 0 else torch.uint8
        x = torch.zeros(num_bytes // dtype.itemsize, dtype=dtype, device=device)
        for name, way in make_ways(x).items():
            steps[name, num_bytes] = way
            turns[name, num_bytes] = repeats if num_bytes < MIB else 3 if num_bytes <= 4 * MIB else 1
    found = throughput.in_turn(steps, rounds, repeats=turns)
    return {case: timing.seconds for case, timing in found.items()}


def slowest(by_rank):
    """Return {case: Timing}, each repeat with its slowest rank: an operation ends when it has ended on every rank."""
    return {
        case: throughput.Timing(tuple(map(max, zip(*(each[case] for each in by_rank), strict=True))))
        for case in by_rank[0]
    }


def curve(times, way):
    """Return (sizes, medians, (lower, upper quartiles)) of one way in {(way, bytes): Timing}, for a figure."""
    points = [(num_bytes, timing) for (name, num_bytes), timing in times.items() if name == way]
    spread = tuple(zip(*(timing.middle_half_s for _, timing in points)))
    return [num_bytes for num_bytes, _ in points], [timing.median_s for _, timing in points], spread
