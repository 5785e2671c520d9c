"""The final tables of `make bench`: every method beside launch, and every limit with its measured value."""

from statistics import median
from typing import NamedTuple

from course_utils.measure import saves

# Launches requested within this many seconds of each other may begin in either order.
APART_S = 0.02


class Row(NamedTuple):
    what: str
    bar: float
    values: list | tuple  # their median must meet the bar; empty if the measurement failed
    at_least: bool = False  # the bar is a minimum, not a maximum

    def __str__(self):
        bar = f"{'≥' if self.at_least else '≤'} {self.bar:<6g}"
        if not self.values:
            return f"{self.what:48s}{'failed':>10s}   {bar}  NOT MET"
        value = median(self.values)
        met = value >= self.bar if self.at_least else value <= self.bar
        spread = f"{min(self.values):.3f}–{max(self.values):.3f}" if len(self.values) > 1 else ""
        return f"{self.what:48s}{value:10.3f}   {bar}  {'' if met else 'NOT MET':9s}{spread}".rstrip()


def report(values):
    print_latency(values["latency"])
    print(f"\n{'what':48s}{'measured':>10s}   {'bar':8s}{'':11s}min–max")
    for row in (
        *first_rows(values["first launch"]),
        *latency_rows(values["latency"]),
        *cost_rows(values["costs"]),
        *comparison_rows(values),
        *saving_rows(values["saving"]),
        *watching_rows(values["watching"]),
        *notebook_rows(values),
    ):
        print(row)


def print_latency(latency):
    sizes = list(latency["launch"])
    print("\nSeconds from the call to the last rank's first all-reduce: median (min–max)")
    print(f"{'':24s}" + "".join(f"{f'{n} workers':>24s}" for n in sizes))
    for method in latency:
        cells = [f"{median(t):.3f} ({min(t):.3f}–{max(t):.3f})" for t in firsts(latency[method]).values()]
        print(f"{method:24s}" + "".join(f"{cell:>24s}" for cell in cells))


def firsts(by_size):
    """Seconds to the last rank's first all-reduce, for one method: {world_size: [seconds, …]}."""
    return {n: [first for first, _ in times] for n, times in by_size.items()}


def first_rows(found):
    yield Row("first launch of a new notebook (s)", 1.6, found["first launch"])
    yield Row("the second, right after it (s)", 0.15, found["second launch"])
    more = median(found["first launch"]) - median(found["import torch"])
    yield Row("first launch less import torch (s)", 1.5, [more])
    yield Row("first launch, 2 s after describe (s)", 0.12, found["first launch, two seconds after describe()"])


def latency_rows(latency):
    launch, step, spawn = (firsts(latency[method]) for method in ("launch", "launch, one DDP step", "spawn"))
    returns = {n: [end for _, end in times] for n, times in latency["launch"].items()}
    for what, times, bars in (
        ("all-reduce", launch, {2: 0.04, 4: 0.07, 8: 0.15, 16: 0.3}),
        ("DDP step", step, {2: 0.06, 8: 0.22, 16: 0.45}),
        ("cell returns", returns, {2: 0.12, 8: 0.3}),
    ):
        yield from (Row(f"{what}, {n} workers (s)", bar, times[n]) for n, bar in bars.items() if n in times)
    for n, bar in {2: 20, 8: 40}.items():
        if n in launch:
            yield Row(f"spawn over launch, {n} workers", bar, [median(spawn[n]) / median(launch[n])], at_least=True)


def cost_rows(costs):
    for state in ("idle", "one DDP step"):
        found = costs[f"private MB of workers, {state}"]
        yield Row(f"private memory of {len(found)}, {state} (MB, largest)", 15, [max(found)])
        yield Row(f"private memory of {len(found)}, {state} (MB, median)", 15, found)
    more = median(costs["seconds, 50 MB returned"]) - median(costs["seconds, nothing returned"])
    yield Row("50 MB returned, more than nothing (s)", 1, [more])
    yield Row("GB returned of 1", 1, [costs["share of 1 GB that arrived"]], at_least=True)
    yield Row("a call of log (µs)", 20, [max(costs["microseconds of a call of log"])])
    yield Row("marking 5 phases, share of a 10 ms step", 0.01, [costs["seconds of marking five phases"] / 0.010])


def comparison_rows(values):
    ours, theirs = (median(values["throughput"][way]) for way in ("launch", "torchrun"))
    yield Row("images/s, launch over torchrun", 0.97, [ours / theirs], at_least=True)
    for n, shares in values["ring"].items():
        yield Row(f"ring over all_reduce, 16 MiB, {n} workers", 0.9, shares, at_least=True)


def saving_rows(found):
    waits = median(row["save"] for row in found["synchronous"])
    returned = [row["save"] / waits for row in found["asynchronous"]]
    yield Row("asynchronous save returns, over synchronous", 0.5, returned)
    for way, bar in (("asynchronous", 2), ("asynchronous, paced", 1.1)):
        yield Row(f"step during a save, ratio: {way}", bar, [saves.ratio(found[way])])


def watching_rows(found):
    for n, ratios in found["panel"].items():
        yield Row(f"DDP steps/s with the panel over without, {n} workers", 0.99, ratios, at_least=True)
    for (n, (call, cell)), bar in zip(found["calls"].items(), (2.5, 5), strict=True):
        yield Row(f"a call on {n} persistent ranks (ms, median)", bar, [call])
    yield Row(f"%%ranks, {n} ranks (ms, median)", 20, [cell])
    recorder = found["recorder"]
    collective = [more for _, more, _, _ in recorder["collective"]]
    shares = [num_calls * median(collective) / usual for _, _, usual, num_calls in recorder["DDP step"]]
    yield Row("a collective with torch's recorder, more (µs)", 5, collective)
    yield Row("DDP step with it over without, by that", 1.01, [1 + share for share in shares])
    yield Row("the same, timed (two groups differ by more)", 1.1, [ratio for ratio, *_ in recorder["DDP step"]])
    yield Row("a message with launch's note of it, more (µs)", 20, [more for _, more in recorder["message"]])
    little, much = found["failure"]
    yield Row("a failure with 1 GiB in its frames, more (s)", 0.1, [median(much) - median(little)])
    rates, growth = found["flood of rows"]["rows per second, MiB"]
    what = f"another notebook while 8 ranks log {sum(rates):,.0f}/s (s)"
    yield Row(what, 0.5, [max(found["flood of rows"]["answers"])])
    yield Row("memory that takes (MiB)", 256, [growth])


def notebook_rows(values):
    flood, launches = values["flood"], values["in turn"]
    what = f"memory while {flood['printed_mb']:.0f} MB are printed in {flood['seconds']:.0f} s (MB)"
    yield Row(what, 64, [flood["growth_mb"]])
    overtaken, waits = line(launches or [])
    yield Row(f"overtaken of {len(launches or [])} launches in line", 0, [overtaken] if launches else [])
    yield Row("longest wait but for those before it (s each)", 0.15, [max(waits)] if launches else [])


def line(launches):
    """How many of the launches, each (asked, begun, over), were overtaken by a later one, and how long each waited.

    A wait is the time not explained by earlier launches, in seconds per launch ahead plus itself, since each must learn
    that the one before is over and start its own workers.
    """
    overtaken, waits = 0, []
    for asked, begun, _ in launches:
        overtaken += any(later > asked + APART_S and their_begin < begun for later, their_begin, _ in launches)
        before = [over - max(their_begin, asked) for earlier, their_begin, over in launches if earlier < asked < over]
        waits.append((begun - asked - sum(before)) / (len(before) + 1))
    return overtaken, waits
