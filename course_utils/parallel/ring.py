"""Ring all-reduce made of messages: what readers write in chapter 08, for later chapters."""

import threading

import torch
import torch.distributed as dist

from . import messages

_kept = threading.local()


def all_reduce(tensor, after_step=None, group=None):
    """Replace `tensor` by its sum over all ranks, in place; each rank sends 2(p − 1)/p of its bytes in 2(p − 1) steps.

    All ranks must call it with the same shape and dtype. Chunk lengths differ by at most one element. If the tensor is
    shorter than the ring, some chunks are empty and are not sent. `after_step()` is called after each step. With a
    `group`, the ring is that of its ranks.

    Raises ValueError for a tensor that is not contiguous.
    """
    if not tensor.is_contiguous():
        raise ValueError(
            "the ring adds in place, chunk by chunk, so the tensor must be contiguous: give it x.contiguous()"
        )
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    ranks = dist.get_process_group_ranks(group)  # of the job
    next_rank, prev_rank = ranks[(rank + 1) % world_size], ranks[rank - 1]
    chunks = tensor.detach().view(-1).tensor_split(world_size)
    buffer = _buffer_like(chunks[0])  # the first chunk is one of the longest
    for step in range(2 * (world_size - 1)):
        is_adding = step < world_size - 1  # reduce-scatter, which leaves chunk `rank` summed here; then all-gather
        first = rank - 1 if is_adding else rank + world_size - 1
        outgoing, incoming = chunks[(first - step) % world_size], chunks[(first - step - 1) % world_size]
        target = buffer[: len(incoming)] if is_adding else incoming
        messages.exchange(outgoing, next_rank, target, prev_rank, group)
        if is_adding:
            incoming += target
        if after_step is not None:
            after_step()


def _buffer_like(chunk):
    """A tensor at least as long as `chunk`, kept for this thread's next call: pages of new memory take time."""
    kept = getattr(_kept, "buffer", None)
    if kept is None or len(kept) < len(chunk) or (kept.dtype, kept.device) != (chunk.dtype, chunk.device):
        kept = _kept.buffer = torch.empty_like(chunk)
    return kept
