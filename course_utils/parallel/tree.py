"""Tree broadcast made of messages: the second half of the tree all-reduce of chapter 08."""

import torch.distributed as dist

from . import messages


def broadcast(tensor):
    """Fill `tensor` on every rank with rank 0's values, in ⌈log2(world size)⌉ rounds; each rank receives once.

    The largest distance comes first, so that messages use the same edges as the sums did on their way to rank 0.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    distance = 1 << (world_size - 1).bit_length()
    while distance > 1:
        distance //= 2
        if rank % (2 * distance) == distance:
            messages.recv(tensor, rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < world_size:
            messages.send(tensor, rank + distance)
