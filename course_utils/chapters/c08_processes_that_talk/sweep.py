"""Time several ways of doing one thing at many sizes, in workers;
the sizes take turns, so that a disturbance hits them all.
"""

import statistics

import torch

from ... import hardware
from ...measure import throughput

MIB = 2**20


def time_ways(backend, make_ways, sizes, rounds, repeats):
    """Return {(way, bytes): seconds} of this rank, the lower quartile of all repeats: interference only adds time.

    `make_ways(x)` gives {name: function}, for a tensor x of so many bytes, on this rank's GPU for "nccl", on the CPU
    otherwise. All of it runs `rounds` times. From 1 MiB on a call is repeated less often, since large messages vary
    less.
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
    """The value that a quarter of `seconds` stayed below; of a single one, that one."""
    return statistics.quantiles(seconds, n=4)[0] if len(seconds) > 1 else seconds[0]


def slowest(by_rank):
    """{case: seconds of the rank that took longest}: an operation is over when it is over on every rank."""
    return {case: max(each[case] for each in by_rank) for case in by_rank[0]}


def curve(times, way):
    """(sizes, seconds) of one way in {(way, bytes): seconds}, for a figure."""
    points = [(num_bytes, seconds) for (name, num_bytes), seconds in times.items() if name == way]
    return tuple(zip(*points))
