"""Who sends to whom in a pipeline, and in which process group."""

import torch.distributed as dist


def find_ways(group=None):
    """Return {phase: (where its messages come from, where they go)} for this rank of `group` (None: all ranks).

    Each of the two is (rank in the group, process group to use). "input", a part of a backward pass, goes the way of
    "backward". NCCL queues the messages of a process group on the GPU, so each direction has its own, and so has the
    link from the last rank to the first, which closes the ring: in a circle of queues all could wait for all. Every
    rank of `group` must call this.
    """
    rank, num_ranks, ways = dist.get_rank(group), dist.get_world_size(group), {}
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    for phase, step, first in ("forward", 1, 0), ("backward", -1, num_ranks - 1):
        row, link = (dist.new_group(ranks, use_local_synchronization=True) for _ in range(2))
        source, target = (rank - step) % num_ranks, (rank + step) % num_ranks
        ways[phase] = (source, link if rank == first else row), (target, link if target == first else row)
    return ways | {"input": ways["backward"]}
