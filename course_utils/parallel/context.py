"""Ring attention: each rank holds a part of the sequence, and keys and values pass from rank to rank.

    positions = zigzag(len(x), world_size)                                # of every rank
    o = ring_attention(q, k, v, positions, causal=True)                   # of this rank's positions

H. Liu, M. Zaharia and P. Abbeel, 2023, arXiv 2310.01889. Shapes: q (b, heads, s_q, d), k and v (b, kv_heads, s_k, d),
where kv_heads divides heads; o is like q, and lse (b, heads, s_q) is the logarithm of each row's sum of exponentials.

Each rank sends its keys and values N − 1 hops in the forward pass. The backward pass computes the scores again: keys
and values take the same way, and behind them travel their gradients, N − 1 hops too, to which each rank adds its own.
A block's gradient begins at the first rank that it visits; what a rank's queries give its own keys stays at home. Every
message but the gradients' last hop, home, runs beside the products of one step.

torch's own, `torch.distributed.tensor.experimental.context_parallel`, replaces `scaled_dot_product_attention` inside a
`with` by a fused kernel for each step. By default it gathers all keys and values at once instead of passing them on;
its gradients go N hops, as float32, and here N − 1, in the dtype of k; its zigzag takes lengths that 2N divides. On a
CPU torch 2.15 raises NotImplementedError.
"""

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from . import messages

_KEYS, _GRADIENTS = 0, 1  # tags


def contiguous(s, world_size):
    """Return the positions of each rank, a list of tensors: `s` tokens in order, cut into equal parts.

    The first parts are longer by one if they cannot be equal.
    """
    return list(torch.arange(s).tensor_split(world_size))


def zigzag(s, world_size):
    """Return the positions of each rank, a list of tensors: rank r has the chunks r and 2N − 1 − r of 2N.

    With a causal mask, early queries see few keys and late ones many; one chunk of each gives all ranks equal work. It
    is the order of zhuzilin/ring-flash-attention (February 2024) and of Llama 3's training (arXiv 2407.21783).
    """
    chunks = torch.arange(s).tensor_split(2 * world_size)
    return [torch.cat([chunks[rank], chunks[-1 - rank]]) for rank in range(world_size)]


def join(parts, positions, dim):
    """Return the whole tensor from all ranks' `parts`, in the order of the sequence along `dim`."""
    return torch.cat(list(parts), dim).index_select(dim, torch.cat(positions).argsort().to(parts[0].device))


def attend_piece(q, k, v, mask=None):
    """Return (o, lse) of the queries over these keys alone; `mask`, (s_q, s_k) or (b, s_q, s_k), is True where seen.

    A query that sees no key has o = 0 and lse = −∞. Sums are float32 at least.
    """
    scores = _scores(q, k, mask)  # (b, kv_heads, queries of a group · s_q, s_k)
    lse = scores.logsumexp(-1)
    o = _weights(scores, lse).to(v.dtype) @ v
    return o.to(lse.dtype).view(*q.shape[:-1], v.shape[-1]), lse.view(q.shape[:-1])


def merge(o, lse, new_o, new_lse):
    """Return (o, lse) over the keys of two pieces, from what each gave: means, weighted by their sums."""
    both = torch.logaddexp(lse, new_lse)
    old, new = ((each - _finite(both)).exp().unsqueeze(-1) for each in (lse, new_lse))
    return old * o + new * new_o, both


def ring_attention(q, k, v, positions, causal=False, lengths=None, group=None, num_pieces=2):
    """Return this rank's rows of attention over the whole sequence, like q; differentiable, once.

    q, k and v are this rank's part. `positions` lists those of every rank of `group`, as `contiguous` and `zigzag`
    return them; they need not be equally many. A query sees the keys up to its own position if `causal`, and of
    sequence i only those before `lengths[i]`, if `lengths` is given; one that sees none gets zeros.

    A rank's queries, and the keys that visit it, are cut into `num_pieces` each. A pair of pieces in which no query
    sees a key is skipped, forward and backward: only so does the zigzag, whose two chunks are two pieces, save
    anything. Keys and values are sent on all the same. Raises ValueError for shapes that do not fit.
    """
    me, held = dist.get_rank(group), [len(own) for own in positions]
    require_fit(q, k, v, held, me)
    return _Ring.apply(q, k, v, _Plan(positions, causal, lengths, group, num_pieces, me))


class _Plan:
    """Who visits whom, and which pieces of queries and keys see each other."""

    def __init__(self, positions, causal, lengths, group, num_pieces, me):
        self.positions, self.causal, self.group, self.me = positions, causal, group, me
        self.num_ranks, self.num_pieces = len(positions), num_pieces
        self.lengths = None if lengths is None else torch.as_tensor(lengths, device="cpu")
        self.next, self.prev = (
            dist.get_global_rank(group or dist.group.WORLD, (me + step) % self.num_ranks) for step in (1, -1)
        )

    def visitor(self, step):
        """The rank whose keys are here in this step; in step 0 its own."""
        return (self.me - step) % self.num_ranks

    def send_on(self, block, step, tag):
        """Start to send `block`, the visitor's, and return (the next visitor's, to be filled; what to wait for)."""
        shape = (*block.shape[:-2], len(self.positions[self.visitor(step + 1)]), block.shape[-1])
        incoming = block.new_empty(shape)
        return incoming, messages.start_exchange(block, self.next, incoming, self.prev, tag, self.group)

    def pairs(self, step, device):
        """Yield (rows, columns, mask) for the pieces of own queries and of the visitor's keys that see each other."""
        for rows, queries in self._cut(self.positions[self.me]):
            for columns, keys in self._cut(self.positions[self.visitor(step)]):
                is_later = self.causal and keys.min() > queries.max()
                is_padding = self.lengths is not None and keys.min() >= self.lengths.max()
                if not (is_later or is_padding):
                    yield rows, columns, self._mask(queries, keys, device)

    def _cut(self, positions):
        begin = 0
        for piece in positions.tensor_split(self.num_pieces):
            if len(piece):
                yield slice(begin, begin + len(piece)), piece
            begin += len(piece)

    def _mask(self, queries, keys, device):
        """Which keys each query sees, by their positions in the whole sequence; None: all."""
        mask = None
        if self.causal and keys.max() > queries.min():
            mask = keys.to(device) <= queries.to(device)[:, None]  # (s_q, s_k)
        if self.lengths is not None and keys.max() >= self.lengths.min():
            is_real = keys.to(device) < self.lengths.to(device)[:, None, None]  # (b, 1, s_k)
            mask = is_real.expand(-1, len(queries), -1) if mask is None else mask & is_real
        return mask


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, plan):
        dtype = torch.promote_types(q.dtype, torch.float32)
        o, lse = q.new_zeros(q.shape, dtype=dtype), q.new_full(q.shape[:-1], -torch.inf, dtype=dtype)
        kv = torch.stack([k, v])  # (2, b, kv_heads, s_k, d): one message
        for step in range(plan.num_ranks):
            if is_not_last := step + 1 < plan.num_ranks:
                following, message = plan.send_on(kv, step, _KEYS)
            for rows, columns, mask in plan.pairs(step, q.device):
                k_here, v_here = kv[..., columns, :]
                new = attend_piece(q[:, :, rows], k_here, v_here, mask)
                o[:, :, rows], lse[:, :, rows] = merge(o[:, :, rows], lse[:, :, rows], *new)
            if is_not_last:
                message.wait()
                kv = following
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, o, lse)
        return o.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_o):
        (q, k, v, o, lse), plan = ctx.saved_tensors, ctx.plan
        shared = (grad_o * o).sum(-1)  # (b, heads, s_q): what every score of a row loses, for its weights add up to 1
        grad_q, kv = torch.zeros_like(o), torch.stack([k, v])
        message = travelled = None
        for step in range(plan.num_ranks):
            if is_not_last := step + 1 < plan.num_ranks:
                following, keys_message = plan.send_on(kv, step, _KEYS)
            grad_kv = torch.zeros_like(kv, dtype=o.dtype)
            for rows, columns, mask in plan.pairs(step, q.device):
                of_rows = (x[:, :, rows] for x in (q, lse, shared, grad_o))
                grads = _piece_backward(*of_rows, *kv[..., columns, :], mask)
                grad_q[:, :, rows] += grads[0]
                grad_kv[0, ..., columns, :] += grads[1]
                grad_kv[1, ..., columns, :] += grads[2]
            if step == 0:
                at_home = grad_kv
            else:
                if message is not None:  # what the ranks visited before have added
                    message.wait()
                    grad_kv += travelled
                travelled, message = plan.send_on(grad_kv.to(k.dtype), step, _GRADIENTS)
            if is_not_last:
                keys_message.wait()
                kv = following
        if message is not None:
            message.wait()
            at_home += travelled
        return grad_q.to(q.dtype), *at_home.to(k.dtype), None


def _piece_backward(q, lse, shared, grad_o, k, v, mask):
    """Return the gradients of q, k and v of one pair of pieces; `lse` and `shared` are of the whole rows."""
    kv_heads, scale = k.shape[1], q.shape[-1] ** -0.5
    q_rows, grad_rows = _grouped(q, kv_heads), _grouped(grad_o, kv_heads)
    weights = _weights(_scores(q, k, mask), _grouped(lse.unsqueeze(-1), kv_heads).squeeze(-1))
    grad_v = weights.to(v.dtype).mT @ grad_rows
    grad_weights = (grad_rows @ v.mT).to(weights.dtype)
    grad_scores = weights * (grad_weights - _grouped(shared.unsqueeze(-1), kv_heads)) * scale
    grad_scores = grad_scores.to(k.dtype)
    return (grad_scores @ k).view(q.shape), grad_scores.mT @ q_rows, grad_v


def _scores(q, k, mask):
    """Return the scores (b, kv_heads, rows, s_k); the rows are those of all heads that share the keys."""
    kv_heads = k.shape[1]
    scores = (_grouped(q, kv_heads) @ k.mT).to(torch.promote_types(q.dtype, torch.float32)) * q.shape[-1] ** -0.5
    if mask is None:
        return scores
    repeated = mask.repeat(*[1] * (mask.dim() - 2), q.shape[1] // kv_heads, 1)
    return scores.masked_fill(~(repeated if mask.dim() == 2 else repeated.unsqueeze(1)), -torch.inf)


def _grouped(x, kv_heads):
    """(b, heads, s, d) → (b, kv_heads, heads / kv_heads · s, d): the rows that share a head of keys, in one matrix."""
    return x.unflatten(1, (kv_heads, -1)).flatten(2, 3)


def _weights(scores, lse):
    return (scores - _finite(lse).unsqueeze(-1)).exp()


def _finite(lse):
    """The logarithm of an empty sum as 0: −∞ − (−∞) would be NaN."""
    return lse.masked_fill(lse == -torch.inf, 0)


def require_fit(q, k, v, held, me):
    """Raise ValueError unless q, k and v fit each other and rank `me`, which has `held[me]` tokens."""
    if k.shape != v.shape or (q.shape[0], *q.shape[2:]) != (k.shape[0], *k.shape[2:]) or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"q is {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}: batch, tokens and d must be equal, and "
            "the heads of q a multiple of those of k and v"
        )
    if q.shape[2] != held[me]:
        raise ValueError(f"q has {q.shape[2]} tokens, and positions gives rank {me} {held[me]} of {sum(held)}")
