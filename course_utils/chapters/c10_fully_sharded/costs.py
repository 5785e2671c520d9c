"""What a step's messages cost: in few and in many pieces, alone and beside computation."""

import functools

import torch
import torch.distributed as dist

from ...measure import throughput

PIECES, GATHERS = (1, 8, 64), (1, 2)


def messages(numbers, num_pieces, num_gathers):
    """Return a function that sends what a step sends for the parameters `numbers`, a flat tensor, and nothing else.

    For each of `num_pieces` equal units that is `num_gathers` all-gathers and a reduce-scatter. With `async_op=True`
    the function starts them all and returns what to wait for.
    """
    world_size = dist.get_world_size()
    size = numbers.numel() // num_pieces // world_size * world_size
    units = [
        (numbers.new_zeros(size), numbers.new_zeros(size // world_size), numbers.new_zeros(size // world_size))
        for _ in range(num_pieces)
    ]

    def send(async_op=False):
        works = []
        for unit, shard, gradient in units:
            for _ in range(num_gathers):
                works.append(dist.all_gather_into_tensor(unit, shard, async_op=async_op))
            works.append(dist.reduce_scatter_tensor(gradient, unit, async_op=async_op))
        return works

    return send


def time_messages(numbers, rounds):
    """Time a step's messages in turn, {(pieces, gathers): Timing}, with DDP's all-reduce as "all-reduce".

    Every rank must call it.
    """
    gradients = torch.zeros_like(numbers)
    sends = {(n, g): messages(numbers, n, g) for g in GATHERS for n in PIECES}
    return throughput.in_turn({"all-reduce": lambda: dist.all_reduce(gradients), **sends}, rounds, warmup=0)


def curves(timings):
    """The timings of `time_messages` for `plots.lines`: over the number of messages, in ms, with the middle half."""
    series = {}
    for g in GATHERS:
        each = [timings[n, g] for n in PIECES]
        ends = zip(*(timing.middle_half_s for timing in each))
        low, high = ([1e3 * seconds for seconds in end] for end in ends)
        series[f"{g + 1} Ψ"] = [(g + 1) * n for n in PIECES], [1e3 * timing.median_s for timing in each], (low, high)
    return series


def time_beside(model, x, rounds):
    """Time a forward and backward pass, a step's messages of 2 Ψ, and both, one after the other or at the same time.

    Returns {name: Timing}, with "computation", and for 2 and 16 messages "… messages", "… messages, then computation"
    and "… messages beside it". Every rank must call it.
    """
    numbers = torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def compute():
        model(x).square().sum().backward()

    def first(send):
        send()
        compute()

    def beside(send):
        works = send(async_op=True)
        compute()
        for work in works:
            work.wait()

    steps = {"computation": compute}
    for n in (1, 8):
        send, name = messages(numbers, n, 1), f"{2 * n} messages"
        steps |= {name: send, f"{name}, then computation": functools.partial(first, send)}
        steps[f"{name} beside it"] = functools.partial(beside, send)
    return throughput.in_turn(steps, rounds, warmup=0)


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
