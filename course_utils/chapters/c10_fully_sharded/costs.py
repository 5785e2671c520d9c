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


def time_beside(model, x, rounds, num_units=8):
    """Time a step's messages, a step's computation, and both, in turn: {what: Timing}. Every rank must call it.

    The computation is a forward and a backward pass of `model`, whole on every rank. The messages carry its parameters
    in `num_units` equal units: an all-gather and a reduce-scatter for each, nothing else. "one after the other" sends
    first; "both at once" starts all messages, computes, and then waits for them.
    """
    num_parts = num_units * dist.get_world_size()
    size = -(-sum(p.numel() for p in model.parameters()) // num_parts)
    units = [(x.new_zeros(size * dist.get_world_size()), *x.new_zeros(2, size)) for _ in range(num_units)]

    def compute():
        model(x).square().sum().backward()

    def send(async_op=False):
        for unit, shard, gradient in units:
            yield dist.all_gather_into_tensor(unit, shard, async_op=async_op)
            yield dist.reduce_scatter_tensor(gradient, unit, async_op=async_op)

    def one_after_the_other():
        list(send())
        compute()

    def both_at_once():
        works = list(send(async_op=True))
        compute()
        for work in works:
            work.wait()

    steps = {
        "messages alone": lambda: list(send()),
        "computation alone": compute,
        "one after the other": one_after_the_other,
        "both at once": both_at_once,
    }
    return throughput.in_turn(steps, rounds)


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
