"""Bandwidth in chapter 02: how many bytes an operation on vectors moves per second."""

import torch

from ...measure import throughput

_STEP_S = 0.02  # launches are timed together: about as many as take this long
_MOST_LAUNCHES = 1000

# {kernel of section 8: its name in the record of tools/gpu/experiments.py}
_RECORDED = {
    "our kernel": "our kernel",
    "not unrolled": "a loop that is not unrolled",
    "no loop": "without a loop",
    "four, one by one": "4 neighbours in turns",
    "four, loads first": "4 neighbours, loads first",
    "four, __restrict__": "4 neighbours in turns, vectors that do not overlap",
    "torch.add": "torch.add",
}
APART = 1, 2, 4, 8, 16, 32  # floats from one element to the next, in section 7's strides


def measure_sizes(make_ways, sizes, device):
    """Return {way: [(bytes, GB/s, slow, fast), …]}, one entry a size; a CPU uses one core.

    `make_ways(x, y, out)` returns {way: (bytes for each element, a function that starts the operation once)} for three
    vectors. GB/s is the median, slow to fast the middle half of the repeats.
    """
    found, num_threads = {}, torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for n in sizes:
            for way, (num_bytes, operate) in make_ways(*torch.rand(3, n, device=device)).items():
                rates = gb_per_s(operate, num_bytes * n, _num_launches(operate, device), device)
                found.setdefault(way, []).append((num_bytes * n, *rates))
    finally:
        torch.set_num_threads(num_threads)
    return found


def measure_apart(make_way, n, device, rounds=5):
    """Return {apart: (GB/s, slow, fast)} for the distances of APART, measured in turn on three vectors of `n` floats.

    `make_way(apart, n, x, y, out)` returns the bytes that the additions need, and a function that starts them once. A
    CPU uses one core. GB/s is the median, slow to fast the middle half.
    """
    num_threads, vectors = torch.get_num_threads(), torch.rand(3, n, device=device)
    torch.set_num_threads(1)
    try:
        ways = {apart: make_way(apart, n, *vectors) for apart in APART}
        for _, operate in ways.values():
            operate()  # what is not loaded yet takes longer
        num_bytes = {apart: moved / 1e9 for apart, (moved, _) in ways.items()}
        found = throughput.in_turn(
            {apart: operate for apart, (_, operate) in ways.items()}, rounds, num_bytes, block_s=_STEP_S / 2
        )
    finally:
        torch.set_num_threads(num_threads)
    return {apart: (timing.samples_per_s, *timing.samples_per_s_half) for apart, timing in found.items()}


def gb_per_s(operate, num_bytes, launches, device):
    """Return the median of the GB/s, and the ends of the repeats' middle half, of `launches` calls timed together.

    On a GPU they are recorded in a CUDA graph, so that the time in which Python asks for them does not count.
    """

    def step():
        for _ in range(launches):
            operate()

    if device.type == "cuda":
        step()  # what is not loaded yet cannot be recorded
        step = throughput.graph_of(operate, launches)
    timing = throughput.measure(step, num_bytes * launches, warmup=1, repeats=5)
    return [rate / 1e9 for rate in (timing.samples_per_s, *timing.samples_per_s_half)]


def kernels_of(record, n=2**26):
    """Return {kernel of section 8: GB/s with n elements} of a record that python -m tools.gpu.experiments made."""
    return {name: record.values["gb_per_s"][way][str(n)] for name, way in _RECORDED.items()}


def apart_of(record, n=2**26):
    """Return {apart: GB/s with n elements} of such a record; {} if it was made before strides were timed."""
    found = record.values["gb_per_s"]
    return {apart: found[f"{apart} apart"][str(n)] for apart in APART if f"{apart} apart" in found}


def _num_launches(operate, device):
    operate()  # what is not loaded yet takes longer
    begin = throughput.now(device)
    operate()
    return min(_MOST_LAUNCHES, max(1, round(_STEP_S / (throughput.now(device) - begin))))
