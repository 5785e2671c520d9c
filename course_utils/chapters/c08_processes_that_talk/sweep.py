"""Time several ways to do one thing at many sizes, in workers.

Sizes take turns, so that a disturbance hits them all.
"""

import statistics

import torch

from ... import hardware
from ...measure import throughput

MIB = 2**20


def time_ways(backend, make_ways, sizes, rounds, repeats):
    """Return this rank's {(way, bytes): seconds}, the lower quartile of all repeats.

    Interference only adds time, hence the lower quartile. `make_ways(x)` returns {name: function} for a tensor x of
    each of `sizes` (bytes), on this rank's GPU for "nccl", else on the CPU. Everything runs `rounds` times. From 1 MiB
    on there are fewer repeats, since large messages vary less.
    """
    device, seconds = hardware.rank_device() if backend == "nccl" else torch.device("cpu"), {}
    for _ in range(rounds):
        for num_bytes in sizes:
            dtype = torch.float32 if num_bytes % 4 == 0 else torch.uint8
            x = torch.zeros(num_bytes // dtype.itemsize, dtype=dtype, device=device)
            turns = repeats if num_bytes < MIB else 3 if num_bytes <= 4 * MIB else 1
            for name, way in make_ways(x).items():
                timing = throughput.measure(way, warmup=1, repeats=turns)
                seconds.setdefault((name, num_bytes), []).extend(timing.seconds)
    return {case: lower_quartile(each) for case, each in seconds.items()}


def lower_quartile(seconds):
    """Return the lower quartile of `seconds`, or the value itself if there is only one."""
    return statistics.quantiles(seconds, n=4)[0] if len(seconds) > 1 else seconds[0]


def slowest(by_rank):
    """Return {case: seconds of the slowest rank}: an operation ends when it has ended on every rank."""
    return {case: max(each[case] for each in by_rank) for case in by_rank[0]}


def curve(times, way):
    """Return (sizes, seconds) of one way in {(way, bytes): seconds}, for a figure."""
    points = [(num_bytes, seconds) for (name, num_bytes), seconds in times.items() if name == way]
    return tuple(zip(*points))
