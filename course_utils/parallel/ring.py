"""Ring all-reduce made of messages: what readers write in chapter 08, for later chapters."""

import torch
import torch.distributed as dist

from . import messages


def all_reduce(tensor, after_step=None):
    """Replace `tensor` by its sum over all ranks, in place; each rank sends 2(p − 1)/p of its bytes in 2(p − 1) steps.

    All ranks must call it with the same shape and dtype. Chunk lengths differ by at most one element. If the tensor is
    shorter than the ring, some chunks are empty and are not sent. `after_step()` is called after each step.

    Raises ValueError for a tensor that is not contiguous.
    """
    if not tensor.is_contiguous():
        raise ValueError(
            "the ring adds in place, chunk by chunk, so the tensor must be contiguous: give it x.contiguous()"
        )
    rank, world_size = dist.get_rank(), dist.get_world_size()
    next_rank, prev_rank = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = tensor.detach().view(-1).tensor_split(world_size)
    buffer = torch.empty_like(chunks[0])  # the first chunk is one of the longest
    for step in range(2 * (world_size - 1)):
        is_adding = step < world_size - 1  # reduce-scatter, which leaves chunk `rank` summed here; then all-gather
        first = rank - 1 if is_adding else rank + world_size - 1
        outgoing, incoming = chunks[(first - step) % world_size], chunks[(first - step - 1) % world_size]
        target = buffer[: len(incoming)] if is_adding else incoming
        messages.exchange(outgoing, next_rank, target, prev_rank)
        if is_adding:
            incoming += target
        if after_step is not None:
            after_step()
