"""Copies between two memories, timed over sizes and compared with the sizes of the CPU's caches."""

import contextlib
import functools
from pathlib import Path

import torch

from ...measure.throughput import Timing, now

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@contextlib.contextmanager
def one_thread():
    """Let the host compute and copy with one thread inside this block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def time_copies(make_ways, sizes, rounds=3, warmup=5, repeats=5):
    """Time `target.copy_(source)` for each {way: (source, target)} of `make_ways(num_bytes)`, for each of `sizes`.

    `sizes` are in bytes. Each round takes every size once, so that a disturbance does not hit one size alone; before
    the first it takes the smallest, untimed, since the first copies after something else are slower. The host copies
    with one thread. Returns {way: {num_bytes: Timing of all rounds}}.
    """
    seconds = {}
    with one_thread():
        for _ in range(rounds):
            for pair in make_ways(min(sizes)).values():
                _time_copy(*pair, warmup, repeats)
            for num_bytes in sizes:
                for way, pair in make_ways(num_bytes).items():
                    so_far = seconds.setdefault(way, {}).get(num_bytes, ())
                    seconds[way][num_bytes] = so_far + _time_copy(*pair, warmup, repeats)
    return {way: {n: Timing(s, n) for n, s in by_size.items()} for way, by_size in seconds.items()}


def _time_copy(source, target, warmup, repeats):
    """Seconds of each repeat. Only a copy to or from a GPU waits for it: asking an idle one takes microseconds, too."""
    clock = functools.partial(now, source.device if source.device.type == "cuda" else target.device)
    seconds = []
    for _ in range(warmup + repeats):
        begin = clock()
        target.copy_(source, non_blocking=True)
        seconds.append(clock() - begin)
    return tuple(seconds[warmup:])


def bandwidth_curve(timings):
    """Turn {num_bytes: Timing} into (sizes, median GB/s, (slower, faster quartile in GB/s)) for `plots.lines`.

    Sizes are in bytes.
    """
    slower, faster = (
        [rate / 1e9 for rate in rates] for rates in zip(*(t.samples_per_s_half for t in timings.values()))
    )
    return list(timings), [timing.samples_per_s / 1e9 for timing in timings.values()], (slower, faster)


def as_record(curves):
    """Return {way: curve} in the form that `recorded.keep` stores, with sizes in KiB."""
    kept = {way: ([n / 1024 for n in sizes], rates, spread) for way, (sizes, rates, spread) in curves.items()}
    return {"columns": ["KiB", "GB/s", ["GB/s, slower quartile", "GB/s, faster quartile"]], "curves": kept}


def from_records(records, direction):
    """Return {name: (sizes in bytes, GB/s)} of the recorded ways that begin with `direction`.

    `records` are from other machines, made by `as_record`.
    """
    return {
        f"recorded on {record.machine}, {way}": ([1024 * kib for kib in sizes], rates)
        for record in records
        for way, (sizes, rates, _) in record.values["curves"].items()
        if way.startswith(direction)
    }


def cache_sizes(folder=_CACHES):
    """Return {"L1": bytes, "L2": …} of the first core's data caches, or {} if Linux does not list them."""
    units, found = {"K": 2**10, "M": 2**20, "G": 2**30}, {}
    for index in sorted(Path(folder).glob("index*")):
        try:
            kind, level, size = ((index / file).read_text().strip() for file in ("type", "level", "size"))
        except OSError:
            continue
        if kind != "Instruction":
            found[f"L{level}"] = int(size.rstrip("KMG")) * units.get(size[-1:], 1)
    return found
