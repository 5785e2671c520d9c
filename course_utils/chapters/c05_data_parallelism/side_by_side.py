"""The same work in two processes at once, to compare with two threads of one process."""

import time
from collections.abc import Callable, Sequence

import torch.distributed as dist

from ...launch import launch
from ...measure import host_memory


def in_processes(works: Sequence[Callable[[int], object]], rounds: int) -> list[float]:
    """Return the shortest time of each work, in seconds: both processes call `work(rank)` at the same moment.

    A time begins when the first of the two begins, and ends when the last has ended.
    """
    spans = list(zip(*launch(_spans, works, rounds, world_size=2, backend="gloo")))
    seconds = [max(end for _, end in both) - min(begin for begin, _ in both) for both in spans]
    return [min(seconds[i :: len(works)]) for i in range(len(works))]


def _spans(works, rounds):
    host_memory.keep_freed_memory()  # as the chapter's own process does
    for work in works:
        work(dist.get_rank())  # the first call is slower
    spans = []
    for work in works * rounds:
        dist.barrier()
        begin = time.perf_counter()
        work(dist.get_rank())
        spans.append((begin, time.perf_counter()))
    return spans
