"""Attention of one process, the truth for attention that is split over ranks."""

import torch
import torch.nn.functional as F


def attention(q, k, v, causal=False, lengths=None):
    """Attention over the whole sequence; a query that sees no key gets zeros."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    places = torch.arange(q.shape[2])
    sees = torch.ones(len(q), 1, len(places), len(places), dtype=torch.bool)
    if causal:
        sees = sees & (places <= places[:, None])
    if lengths is not None:
        sees = sees & (places < torch.tensor(lengths)[:, None, None, None])
    is_seeing = sees.any(-1, keepdim=True)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=sees | ~is_seeing) * is_seeing


def with_gradients(attend, q, k, v, pull):
    """[o, gradients of q, k and v] of `attend(q, k, v)`, where o's gradient is `pull`."""
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    o = attend(*leaves)
    o.backward(pull)
    return [o.detach(), *(leaf.grad for leaf in leaves)]


def own_and_true(attend, positions, rank, sizes, dtype=torch.float64, causal=False, lengths=None, seed=0):
    """What `attend(q, k, v)` gives a rank, and its part of the truth; `sizes` are (b, heads, kv_heads, s, d)."""
    b, heads, kv_heads, s, d = sizes
    generator = torch.Generator().manual_seed(seed)
    q, k, v, pull = (
        torch.randn(b, number, s, d, generator=generator, dtype=dtype) for number in (heads, kv_heads, kv_heads, heads)
    )
    truth = with_gradients(lambda q, k, v: attention(q, k, v, causal, lengths), q, k, v, pull)
    own = positions[rank]
    return with_gradients(attend, *(x[:, :, own] for x in (q, k, v, pull))), [x[:, :, own] for x in truth]
