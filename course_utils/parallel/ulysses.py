"""Attention over a sequence that is split over ranks, by two all-to-alls: parts of the sequence become heads.

    o = ulysses_attention(q, k, v, positions, causal=True)

S. Jacobs and others, 2023, DeepSpeed-Ulysses, arXiv 2309.14509. Before attention, each rank sends every other one that
rank's heads of its own tokens, and then has some heads of the whole sequence; afterwards the outputs go back. Heads do
not mix in attention, so that any attention can be used in between, and a causal mask is no more work for one rank than
for another. Shapes are those of `context.ring_attention`: q (b, heads, s_q, d), k and v (b, kv_heads, s_q, d).

There must be at least one head of keys and values for each rank. DeepSpeed's own sends q, k and v one after the other.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from .context import require_fit


def ulysses_attention(q, k, v, positions, causal=False, lengths=None, group=None):
    """Return this rank's rows of attention over the whole sequence, like q; differentiable.

    The arguments are those of `context.ring_attention`, and so is the result. A rank's heads of keys and values come
    with the heads of queries that share them; numbers that do not divide differ by one. Raises ValueError if there are
    fewer heads of keys and values than ranks, or for shapes that do not fit.
    """
    held, me, kv_heads = [len(own) for own in positions], dist.get_rank(group), k.shape[1]
    require_fit(q, k, v, held, me)
    if kv_heads < len(held):
        raise ValueError(
            f"k and v have {kv_heads} heads, and there are {len(held)} ranks: each needs at least one. Take fewer "
            "ranks or ring_attention, or repeat the heads with k.repeat_interleave(times, 1)"
        )
    shares = [len(x) for x in torch.arange(kv_heads).tensor_split(len(held))]  # each rank's heads of keys and values
    per_group = q.shape[1] // kv_heads
    widths = [[number * per_group, number, number] for number in shares]  # of q, k and v
    queries, keys, values = (x.split([row[i] for row in widths], 1) for i, x in enumerate((q, k, v)))
    x = torch.cat([head for heads in zip(queries, keys, values) for head in heads], 1)  # (b, all heads, s_own, d)
    x = _Swap.apply(x, (1, [sum(row) for row in widths]), (2, held), group)  # (b, heads of this rank, s, d)
    order = torch.cat(list(positions)).to(x.device)
    q, k, v = x[:, :, order.argsort()].split(widths[me], 1)
    o = _attend(q, k, v, causal, lengths)[:, :, order]  # (b, heads of this rank, s, d)
    return _Swap.apply(o, (2, held), (1, [row[0] for row in widths]), group)  # (b, heads, s_own, d)


def _attend(q, k, v, causal, lengths):
    """Attention of whole sequences; a query that sees no key gets zeros."""
    if lengths is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    places = torch.arange(q.shape[2], device=q.device)
    mask = places < torch.as_tensor(lengths, device=q.device)[:, None, None, None]  # (b, 1, 1, s_k)
    if causal:
        mask = mask & (places <= places[:, None])  # (b, 1, s_q, s_k)
    is_seeing = mask.any(-1, keepdim=True)
    # Without a key the weights would be NaN: such a query sees all of them here, and its output is taken away.
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask | ~is_seeing, enable_gqa=True)
    return o.where(is_seeing, 0)


class _Swap(torch.autograd.Function):
    """An all-to-all: part j along one dimension goes to rank j, and what comes is joined along the other.

    `split` and `joined` are (dimension, the ranks' lengths along it). The gradients go back in the same way.
    """

    @staticmethod
    def forward(ctx, x, split, joined, group):
        ctx.ways = split, joined, group
        return _swap(x, split, joined, group)

    @staticmethod
    def backward(ctx, gradient):
        split, joined, group = ctx.ways
        return _swap(gradient, joined, split, group), None, None, None


def _swap(x, split, joined, group):
    (split_dim, out_lengths), (joined_dim, in_lengths) = split, joined
    outgoing = [part.flatten() for part in x.detach().split(out_lengths, split_dim)]
    shape = list(x.shape)
    shape[split_dim] = out_lengths[dist.get_rank(group)]
    shapes = [[length if dim == joined_dim else n for dim, n in enumerate(shape)] for length in in_lengths]
    sizes = [torch.Size(each).numel() for each in shapes]
    incoming = x.new_empty(sum(sizes))
    dist.all_to_all_single(incoming, torch.cat(outgoing), sizes, [len(part) for part in outgoing], group=group)
    return torch.cat([part.view(each) for part, each in zip(incoming.split(sizes), shapes)], joined_dim)
