"""How much each rank computes in a step, in pairs and in seconds, and how long until the last rank is done."""

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


def computed_pairs(positions, num_pieces):
    """Pairs of a query and a key that each rank computes under a causal mask, if it skips what nobody sees.

    `positions` lists every rank's. Queries and keys are cut into `num_pieces` each, as by `context.ring_attention`; a
    pair of pieces in which something is seen is computed whole.
    """
    cut = [own.tensor_split(num_pieces) for own in positions]
    keys = [piece for pieces in cut for piece in pieces]
    return [
        sum(len(queries) * len(piece) for queries in pieces for piece in keys if piece.min() <= queries.max())
        for pieces in cut
    ]
