"""The same work on two cores at once: threads that stay on a core each, and two processes to compare with."""

import functools
import itertools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from ...launch import launch
from ...measure import host_memory
from ...measure.throughput import Timing


def stay_on_core(number: int) -> None:
    """Let the calling thread compute alone and on one core: `number` counts the process's cores, and starts again.

    Cores that share a physical core come last. Where the system cannot do this (macOS), threads run where they like.
    """
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        cores = _apart(tuple(sorted(os.sched_getaffinity(0))))  # a new thread may still run on all of the process's
        os.sched_setaffinity(0, {cores[number % len(cores)]})


@functools.cache
def _apart(cores):
    """Return `cores` in another order: first one of each physical core, then the others."""
    by_physical = {}
    for core in cores:
        path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        by_physical.setdefault(path.read_text() if path.exists() else core, []).append(core)
    return [core for each in itertools.zip_longest(*by_physical.values()) for core in each if core is not None]


def in_processes(works: Sequence[Callable[[int], object]], rounds: int) -> list[Timing]:
    """Return a Timing of each work: two processes, on a core each, call `work(rank)` at the same moment.

    A time begins when the first of the two begins, and ends when the last has ended.
    """
    spans = list(zip(*launch(_spans, works, rounds, world_size=2, backend="gloo")))
    seconds = [max(end for _, end in both) - min(begin for begin, _ in both) for both in spans]
    return [Timing(tuple(seconds[i :: len(works)])) for i in range(len(works))]


def _spans(works, rounds):
    stay_on_core(dist.get_rank())
    host_memory.keep_freed_memory()  # as the chapter's own process does
    for work in works:
        work(dist.get_rank())  # the first call is slower
    spans = []
    for work in works * rounds:
        _meet()
        begin = time.perf_counter()
        work(dist.get_rank())
        spans.append((begin, time.perf_counter()))
    return spans


def _meet():
    """Return in both processes at the same moment; after a barrier one may be milliseconds late."""
    at_s = torch.tensor([time.perf_counter() + 0.006], dtype=torch.float64)  # one clock for the whole machine
    dist.broadcast(at_s, src=0)
    time.sleep(max(0.0, at_s.item() - time.perf_counter() - 0.001))  # leaves the core to the broadcast's threads
    while time.perf_counter() < at_s.item():
        pass
