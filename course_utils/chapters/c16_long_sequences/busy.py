"""How long each rank computes in a step, and how long the step takes until the last rank is done."""

import time

import torch.distributed as dist

from ...hardware import rank_device
from ...measure import throughput


def time_ranks(step, rounds):
    """Run `step()` `rounds` times, after one untimed run; every rank must call it.

    Returns [(computing_s, wall_s)] of this rank. The ranks begin together, and `wall_s` ends when the last is done.
    `computing_s` is the CPU time of this rank's thread, which waiting for a message does not use, so it means the same
    where ranks share a core; None on a GPU.
    """
    on_gpu = rank_device().type == "cuda"
    step()
    times = []
    for _ in range(rounds):
        dist.barrier()
        begin, cpu = throughput.now(), time.thread_time()
        step()
        cpu = time.thread_time() - cpu
        throughput.now()  # a GPU's work is done
        dist.barrier()
        times.append((None if on_gpu else cpu, time.perf_counter() - begin))
    return times


def idle_share(ranks):
    """The share of all ranks' time in which they did not compute, a number for each round.

    `ranks` are the results of `time_ranks`, one for each rank.
    """
    return [
        1 - sum(computing for computing, _ in each) / sum(wall for _, wall in each)
        for each in zip(*ranks)
    ]  # fmt: skip
