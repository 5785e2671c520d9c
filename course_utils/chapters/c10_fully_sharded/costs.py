"""What a step costs: the bytes that really travel, and how much longer one way to train takes than another."""

import psutil
import torch
import torch.distributed as dist

from ...measure import throughput
from ...processes import network


def travelled(call, repeats=3):
    """Return the bytes that all ranks of this machine together send while each runs `call()`.

    The operating system counts them where they pass, at the loopback interface. Other traffic can only add to them: the
    least of `repeats` counts is returned. None with NCCL, which sends by other ways. Every rank must call it.
    """
    if "nccl" in dist.get_backend_config():
        return None
    counts = []
    for _ in range(repeats):
        dist.barrier()
        before = _passed()
        dist.barrier()  # no rank begins before all have read the counter
        call()
        dist.barrier()
        counts.append(_passed() - before)
    return min(counts)


def _passed():
    return psutil.net_io_counters(pernic=True)[network.loopback()].bytes_sent


def time_collectives(calls, rounds):
    """Return {name: (bytes that travelled, Timing)} of {name: call}, timed in turn. Every rank must call it."""
    num_bytes = {name: travelled(call) for name, call in calls.items()}
    timings = throughput.in_turn(calls, rounds, warmup=0)
    return {name: (num_bytes[name], timings[name]) for name in calls}


class ReduceScatter:
    """What `set_custom_reduce_scatter` takes: `send(shard, whole)` leaves the sum over ranks of a part in `shard`."""

    def __init__(self, send):
        self.send = send

    def allocate(self, size, *, dtype, device):
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        self.send(output_tensor, input_tensor)
        if op == dist.ReduceOp.AVG:
            output_tensor /= dist.get_world_size()


def changes(timings, first, second):
    """How much longer step `second` takes than `first` in one `in_turn`, in ms: quartiles over the rounds."""
    pairs = zip(timings[first].seconds, timings[second].seconds, strict=True)
    return throughput.quartiles(1e3 * (b - a) for a, b in pairs)


def print_changes(timings, pairs):
    """Print a line for each of {what: (first, second)}: how much longer the second takes, and how sure that is."""
    for what, (first, second) in pairs.items():
        low, middle, high = changes(timings, first, second)
        doubt = "" if low * high > 0 else ", so the sign is uncertain"
        print(f"{what:37s} {middle:+6.1f} ms (half of the rounds: {low:+.1f} to {high:+.1f}{doubt})")


def print_balance(timings, whats):
    """Print what each change costs, from the first way to the last, their sum, and the difference of the two.

    `timings` is {way: Timing} in the order of the changes; `whats` has a name for each change, one fewer than the ways.
    """
    ways = list(timings)
    print_changes(timings, dict(zip(whats, zip(ways, ways[1:]), strict=True)))
    total = changes(timings, ways[0], ways[-1])[1]
    parts = sum(changes(timings, *pair)[1] for pair in zip(ways, ways[1:]))
    print(f"{'sum of these medians':37s} {parts:+6.1f} ms")
    print_changes(timings, {f"{ways[-1]}, against {ways[0]}": (ways[0], ways[-1])})
    print(f"{'not explained':37s} {total - parts:+6.1f} ms")
