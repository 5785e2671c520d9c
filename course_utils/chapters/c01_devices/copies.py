"""What a copy between two memories costs: timed over sizes, drawn as bandwidth, held against the
sizes of the caches.
"""

import contextlib
from pathlib import Path

import torch

from ...measure.throughput import Timing, measure

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@contextlib.contextmanager
def one_thread():
    """The host computes and copies with one thread inside this block, and with as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def time_copies(make_ways, sizes, rounds=3, warmup=5, repeats=5):
    """Time `target.copy_(source)` for each {way: (source, target)} of `make_ways(num_bytes)` and each size in bytes.

    All sizes are gone through in each round, so that a slow moment does not hit one size alone; the host copies with
    one thread. Returns {way: {num_bytes: Timing of all rounds}}.
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
    """(sizes in bytes, GB/s by the median, (by the slower, by the faster quartile)) of {num_bytes:
    Timing}, for `plots.lines`.
    """
    shares = torch.tensor([0.75, 0.5, 0.25], dtype=torch.float64)
    rows = []
    for num_bytes, timing in timings.items():
        seconds = torch.tensor(timing.seconds, dtype=torch.float64).quantile(shares)
        rows.append((num_bytes / seconds / 1e9).tolist())
    slower, rates, faster = map(list, zip(*rows))
    return list(timings), rates, (slower, faster)


def as_record(curves):
    """{way: curve} as `recorded.keep` keeps it: sizes in KiB."""
    kept = {way: ([n / 1024 for n in sizes], rates, spread) for way, (sizes, rates, spread) in curves.items()}
    return {"columns": ["KiB", "GB/s", ["GB/s, slower quartile", "GB/s, faster quartile"]], "curves": kept}


def from_records(records, direction):
    """{name: (sizes in bytes, GB/s)} of the ways that begin with `direction` in what other machines
    kept by `as_record`.
    """
    return {
        f"recorded on {record.machine}, {way}": ([1024 * kib for kib in sizes], rates)
        for record in records
        for way, (sizes, rates, _) in record.values["curves"].items()
        if way.startswith(direction)
    }


def cache_sizes(folder=_CACHES):
    """{"L1": bytes, "L2": …} of the first core's caches for data, by Linux; {} where the system does not tell."""
    units, found = {"K": 2**10, "M": 2**20, "G": 2**30}, {}
    for index in sorted(Path(folder).glob("index*")):
        try:
            kind, level, size = ((index / file).read_text().strip() for file in ("type", "level", "size"))
        except OSError:
            continue
        if kind != "Instruction":
            found[f"L{level}"] = int(size.rstrip("KMG")) * units.get(size[-1:], 1)
    return found
