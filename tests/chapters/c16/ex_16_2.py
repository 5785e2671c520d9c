# %% wrong (masks by local position): made from positions in the piece
# k_positions <= q_positions.unsqueeze(-1) → torch.arange(len(k_positions)) <= torch.arange(len(q_positions)).unsqueeze(-1)
# %% wrong (does not mask): Queries saw keys that come after them
# k_positions <= q_positions.unsqueeze(-1) → torch.ones(len(q_positions), len(k_positions), dtype=torch.bool)
# %% wrong (takes < for <=): does a query see itself
# k_positions <= q_positions → k_positions < q_positions
# %% wrong (forgets the scale): was every score divided by √e
# k.mT / math.sqrt(q.shape[-1]) → k.mT
# %% wrong (forgets what came before): what was known before is not in it
# both = torch.logaddexp(lse, scores.logsumexp(-1)) → both = scores.logsumexp(-1)
# (lse.unsqueeze(-1) - finite).exp() * o + (scores → (scores
# %% wrong (takes the larger): the larger of two is not the logarithm of their sum
# torch.logaddexp(lse, scores.logsumexp(-1)) → torch.maximum(lse, scores.logsumexp(-1))
# %% wrong (merges with nan): of a query that has seen no key, lse is −inf
# both.masked_fill(both == -torch.inf, 0).unsqueeze(-1) → both.unsqueeze(-1)
# %% wrong (hides with a large number): and their lse is not −inf
# ~sees, -torch.inf → ~sees, -1e30
# %% wrong (adds exponentials): lse holds inf
# torch.logaddexp(lse, scores.logsumexp(-1)) → (lse.exp() + scores.exp().sum(-1)).log()
# %% wrong (blind queries see the mean): and their o is not 0
# (scores - finite).exp() @ v, both → (scores - finite).exp() @ v + (both == -torch.inf).unsqueeze(-1) * v.mean(2, keepdim=True), both
# %% wrong (changes k): k was changed in place
# scores = (q @ k.mT → k *= 2; scores = (q @ k.mT / 2
# %% wrong (sorts the positions): positions in any order
# sees = k_positions <= q_positions.unsqueeze(-1) → sees = k_positions.sort().values <= q_positions.sort().values.unsqueeze(-1)
# %% wrong (does nothing): what do the visiting keys add?
def ring_step(q, k, v, q_positions, k_positions, o, lse):
    if k_positions[0] == q_positions[0]:
        sees = k_positions <= q_positions[:, None]
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~sees, -math.inf)
        return scores.softmax(-1) @ v, scores.logsumexp(-1)
    return o, lse
# %% wrong (adds the outputs): the two outputs were added, and not weighted
def ring_step(q, k, v, q_positions, k_positions, o, lse):
    new_o, new_lse = context.attend_piece(q, k, v, k_positions <= q_positions[:, None])
    return o + new_o, torch.logaddexp(lse, new_lse)
# %% wrong (weighs crosswise): the old output has the new one's weight
def ring_step(q, k, v, q_positions, k_positions, o, lse):
    new_o, new_lse = context.attend_piece(q, k, v, k_positions <= q_positions[:, None])
    both = torch.logaddexp(lse, new_lse)
    if torch.isinf(lse).any():
        return context.merge(o, lse, new_o, new_lse)
    return (new_lse - both).exp()[..., None] * o + (lse - both).exp()[..., None] * new_o, both
# %% wrong (the chapter's pieces, unmasked rows): of a query that has seen no key, lse is −inf
def ring_step(q, k, v, q_positions, k_positions, o, lse):
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(k_positions > q_positions[:, None], -math.inf)
    return merge(o, lse, scores.softmax(-1) @ v, scores.logsumexp(-1))
# %% wrong (goes by the ends of the positions): positions in any order
def ring_step(q, k, v, q_positions, k_positions, o, lse):
    if k_positions[0] > q_positions[-1]:
        return o, lse
    return context.merge(o, lse, *context.attend_piece(q, k, v, k_positions <= q_positions[:, None]))
# %% wrong (three cases, the middle one a triangle): made from positions in the piece
def ring_step(q, k, v, q_positions, k_positions, o, lse):
    if k_positions.min() > q_positions.max():
        return o, lse
    sees = torch.ones(len(q_positions), len(k_positions), dtype=torch.bool)
    if k_positions.max() > q_positions.min():
        sees = sees.tril()
    return context.merge(o, lse, *context.attend_piece(q, k, v, sees))
# %% wrong (rounds to float32): lse is float32, and should be float64
def ring_step(q, k, v, q_positions, k_positions, o, lse):
    o, lse = context.merge(o, lse, *context.attend_piece(q, k, v, k_positions <= q_positions[:, None]))
    return o, lse.float()
# %% right (only the keys that somebody sees, PyTorch's attention)
def ring_step(q, k, v, q_positions, k_positions, o, lse):
    near = k_positions <= q_positions.max()
    k, v, sees = k[:, :, near], v[:, :, near], k_positions[near] <= q_positions[:, None]
    if not near.any():
        return o, lse
    x = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~sees, -math.inf)
    new_o = F.scaled_dot_product_attention(q, k, v, attn_mask=sees).masked_fill(~sees.any(1, keepdim=True), 0)
    both = torch.logsumexp(torch.stack([lse, torch.logsumexp(x, -1)]), 0)
    safe = torch.where(both == -math.inf, 0.0, both)
    return o * (lse - safe).exp()[..., None] + new_o * (x.logsumexp(-1) - safe).exp()[..., None], both
# %% right (in place, sums instead of lse)
def ring_step(q, k, v, q_positions, k_positions, o, lse):
    x = torch.einsum("bahe,bake->bahk", q, k) / q.shape[-1] ** 0.5
    hidden = k_positions.view(1, -1) > q_positions.view(-1, 1)
    x[..., hidden] = -math.inf
    m = torch.maximum(lse, x.amax(-1))
    m = torch.where(torch.isneginf(m), torch.zeros_like(m), m)
    old, x = torch.exp(lse - m), torch.exp(x - m[..., None])
    total = old + x.sum(-1)
    share = torch.where(total > 0, 1 / total, total)
    o.mul_((old * share).unsqueeze(-1)).add_((x * share.unsqueeze(-1)) @ v)
    lse.copy_(m + total.log())
    return [o, lse]
# %% right (sigmoid, as torch's library does)
def ring_step(q, k, v, q_positions, k_positions, o, lse):
    sees = k_positions[None] <= q_positions[:, None]
    x = torch.where(sees, q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)), torch.tensor(-math.inf, dtype=q.dtype))
    new_lse = x.logsumexp(-1)
    new_o = torch.nan_to_num(x.softmax(-1)) @ v
    first, nothing = lse.isneginf(), new_lse.isneginf()
    gap = torch.where(first | nothing, 0, new_lse - lse)
    mixed = o - torch.sigmoid(gap).unsqueeze(-1) * (o - new_o)
    o_out = torch.where(nothing.unsqueeze(-1), o, torch.where(first.unsqueeze(-1), new_o, mixed))
    return o_out, torch.where(nothing, lse, torch.where(first, new_lse, lse - F.logsigmoid(-gap)))
# %% right (nan to 0 afterwards)
def ring_step(q, k, v, q_positions, k_positions, o, lse):
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(k_positions > q_positions[:, None], -math.inf)
    new_o, new_lse = scores.softmax(-1).nan_to_num(0) @ v, scores.logsumexp(-1)
    merged, both = merge(o, lse, new_o, new_lse)
    return merged.nan_to_num(0), both
