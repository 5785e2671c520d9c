"""Attention of one process, the truth for attention that is split over ranks."""

import itertools
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_utils.parallel.context import contiguous, zigzag


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


def equal_in_all_cases(attend, kinds):
    """Return the number of cases in which this rank's part of output and gradients is that of one process.

    `attend(q, k, v, positions=…, causal=…, lengths=…)` is tried on both orders, on lengths that ranks divide or not and
    one that leaves a rank of four without tokens, causal or not, and on all `kinds`, (heads, heads of keys, "",
    "padded" or "float32").
    """
    N, me, count = dist.get_world_size(), dist.get_rank(), 0
    for order, s, causal, (heads, kv_heads, how) in itertools.product(
        (contiguous, zigzag), (16, 13, 3), (False, True), kinds
    ):
        positions = order(s, N)
        options = {"causal": causal, "lengths": [s, s // 2, 0] if how == "padded" else None}
        dtype = torch.float32 if how == "float32" else torch.float64
        mine = partial(attend, positions=positions, **options)
        ours, truth = own_and_true(mine, positions, me, (3, heads, kv_heads, s, 4), dtype, seed=count, **options)
        close = {} if how == "float32" else {"rtol": 1e-9, "atol": 1e-12}
        at = f"{order.__name__}, {s} tokens, {heads} and {kv_heads} heads, causal {causal}, {how}\n"
        torch.testing.assert_close(ours, truth, **close, msg=lambda text, at=at: at + text)
        count += 1
    return count
