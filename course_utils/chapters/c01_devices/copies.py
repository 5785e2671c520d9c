"""Copies between two memories, timed over sizes and compared with the sizes of the CPU's caches."""

import contextlib
from pathlib import Path

import torch

from ...measure.throughput import Timing, measure

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

    `sizes` are in bytes. Each round takes every size once, so that a disturbance does not hit one size alone. The host
    copies with one thread. Returns {way: {num_bytes: Timing of all rounds}}.
    """
    seconds = {}
    with one_thread():
        for _ in range(rounds):
            for num_bytes in sizes:
                for way, (source, target) in make_ways(num_bytes).items():
                    timing = measure(lambda: target.copy_(source, non_blocking=True), warmup=warmup, repeats=repeats)
                    so_far = seconds.setdefault(way, {}).get(num_bytes, ())
                    seconds[way][num_bytes] = so_far + timing.seconds
    return {way: {n: Timing(s, n) for n, s in by_size.items()} for way, by_size in seconds.items()}


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
