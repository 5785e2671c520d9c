"""A broadcast down a tree, with messages only: the second half of the all-reduce along a tree
that chapter 08 builds.
"""

import torch.distributed as dist

from . import messages


def broadcast(tensor):
    """Fill `tensor` on every rank with what rank 0's holds, in place, in ⌈log2(world size)⌉ rounds; each rank receives
    it once.

    The largest distance comes first, so that the messages take the same edges as the sums took on their way to rank 0.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    distance = 1 << (world_size - 1).bit_length()
    while distance > 1:
        distance //= 2
        if rank % (2 * distance) == distance:
            messages.recv(tensor, rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < world_size:
            messages.send(tensor, rank + distance)
