# %% wrong (never shrinks): sums that belong to different maxima were added
# shrink = (m - larger).exp() → shrink = torch.ones_like(m)
# %% wrong (forgets the scale): was every score divided by √e
# keys.mT * scale → keys.mT
# %% wrong (drops the last block): the last, shorter block is missing
# in zip( → in zip(range(k.shape[2] // block_size) if k.shape[2] >= block_size else [0],
# for keys, values → for _, keys, values
# %% wrong (does not divide): is not divided by the sum of weights
# return o / total.unsqueeze(-1) → return o
# %% wrong (keeps the maximum out of lse): the maximum was subtracted and not added again
# m + total.log() → total.log()
# %% wrong (returns the maximum for lse): it is the row's maximum alone
# m + total.log() → m
# %% wrong (forgets the logarithm): a sum of exponentials, and its logarithm is asked
# m + total.log() → m.exp() * total
# %% wrong (begins at 0): and with what does the running maximum begin?
# -torch.inf → 0.0
# %% wrong (takes another logarithm): it is the logarithm of the sum of all exponentials
# m + total.log() → m + total.log2()
# %% wrong (scales o alone): lse: that is not right (max difference 0.48): sums that belong to different maxima
# total = total * shrink + → total = total +
# return o / total.unsqueeze(-1) → return (q @ k.mT * scale).softmax(-1) @ v
# %% wrong (shrinks by the new maximum): is what the earlier blocks gave scaled down
# shrink = (m - larger).exp() → shrink = (m - larger).exp().clamp(min=0.5)
# m + total.log() → (q @ k.mT * scale).logsumexp(-1)
# %% wrong (changes q): q was changed in place
# scale = 1 / math.sqrt(q.shape[-1]) → scale = 1; q.div_(math.sqrt(q.shape[-1]))
# %% wrong (returns o alone): what came back is a tensor of shape (2, 3, 5, 4), not a list or tuple
# return o / total.unsqueeze(-1), m + total.log() → return o / total.unsqueeze(-1)
# %% wrong (turns them round): o has shape (2, 3, 5), and should have (2, 3, 5, 4)
# return o / total.unsqueeze(-1), m + total.log() → return m + total.log(), o / total.unsqueeze(-1)
# %% wrong (makes the whole table): which scores are needed once their block is done?
def attend_in_blocks(q, k, v, block_size):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ v, scores.logsumexp(-1)
# %% wrong (keeps all blocks): which scores are needed once their block is done?
def attend_in_blocks(q, k, v, block_size):
    blocks = [q @ keys.mT / math.sqrt(q.shape[-1]) for keys in k.split(block_size, 2)]
    lse = torch.stack([x.logsumexp(-1) for x in blocks]).logsumexp(0)
    return sum((x - lse.unsqueeze(-1)).exp() @ values for x, values in zip(blocks, v.split(block_size, 2))), lse
# %% wrong (takes the last block alone): it is the last block's own
def attend_in_blocks(q, k, v, block_size):
    for keys, values in zip(k.split(block_size, 2), v.split(block_size, 2)):
        scores = q @ keys.mT / math.sqrt(q.shape[-1])
        o, lse = scores.softmax(-1) @ values, scores.logsumexp(-1)
    return o, lse
# %% wrong (takes the mean of the blocks): it is the mean of the blocks' own results
def attend_in_blocks(q, k, v, block_size):
    found = [attend_piece(q, *each) for each in zip(k.split(block_size, 2), v.split(block_size, 2))]
    return tuple(torch.stack(each).mean(0) for each in zip(*found))
# %% wrong (adds sums of different maxima): were added as they are
def attend_in_blocks(q, k, v, block_size):
    o, l, m = 0, 0, torch.full_like(q[..., 0], -torch.inf)
    for keys, values in zip(k.split(block_size, 2), v.split(block_size, 2)):
        x = q @ keys.mT / q.shape[-1] ** 0.5
        weights = (x - x.amax(-1, keepdim=True)).exp()
        o, l, m = o + weights @ values, l + weights.sum(-1), torch.maximum(m, x.amax(-1))
    return o / l[..., None], m + l.log()
# %% wrong (no maximum): exp of a large score overflows
def attend_in_blocks(q, k, v, block_size):
    o, l = torch.zeros_like(q), torch.zeros_like(q[..., 0])
    for keys, values in zip(k.split(block_size, 2), v.split(block_size, 2)):
        weights = (q @ keys.mT / q.shape[-1] ** 0.5).exp()
        o, l = o + weights @ values, l + weights.sum(-1)
    return o / l[..., None], l.log()
# %% wrong (leaves it to the fused kernel): was given 256 keys at once, and a block has 8
def attend_in_blocks(q, k, v, block_size):
    lse = torch.full_like(q[..., 0], -torch.inf)
    for keys in k.split(block_size, 2):
        lse = torch.logaddexp(lse, (q @ keys.mT / q.shape[-1] ** 0.5).logsumexp(-1))
    return F.scaled_dot_product_attention(q, k, v), lse
# %% right (the fused kernel for a block)
def attend_in_blocks(q, k, v, block_size):
    o, lse = torch.zeros_like(q), torch.full_like(q[..., 0], -torch.inf)
    for keys, values in zip(k.split(block_size, 2), v.split(block_size, 2)):
        new = (q @ keys.mT / q.shape[-1] ** 0.5).logsumexp(-1)
        o, lse = merge(o, lse, F.scaled_dot_product_attention(q, keys, values), new)
    return o, lse
# %% right (copies in float64, padded blocks)
def attend_in_blocks(q, k, v, block_size):
    more = -k.shape[2] % block_size
    keys, values = (F.pad(x.double(), (0, 0, 0, more)).unflatten(2, (-1, block_size)) for x in (k, v))
    o, m, l = torch.zeros_like(q).double(), q.new_full(q.shape[:-1], -math.inf).double(), torch.zeros_like(q[..., 0]).double()
    for i in range(keys.shape[2]):
        x = q.double() @ keys[:, :, i].mT * q.shape[-1] ** -0.5
        x[..., torch.arange(i * block_size, (i + 1) * block_size) >= k.shape[2]] = -math.inf
        new = torch.maximum(m, x.amax(-1))
        w = torch.exp(x - new[..., None])
        o, l, m = o * torch.exp(m - new)[..., None] + w @ values[:, :, i], l * torch.exp(m - new) + w.sum(-1), new
    return (o / l[..., None]).to(q), (m + torch.log(l)).to(q)
# %% right (in place, slices, einsum, a list)
def attend_in_blocks(q, k, v, block_size):
    b, a, n, e = q.shape
    m = torch.full((b, a, n, 1), -math.inf, dtype=q.dtype)
    l, o = torch.zeros((b, a, n, 1), dtype=q.dtype), torch.zeros((b, a, n, e), dtype=q.dtype)
    for first in range(0, k.shape[2], block_size):
        part = slice(first, first + block_size)
        x = torch.einsum("bahe,bake->bahk", q, k[:, :, part]) / e**0.5
        new = torch.max(m, x.max(dim=-1, keepdim=True).values)
        x.sub_(new).exp_()
        l.mul_(torch.exp(m - new)).add_(x.sum(-1, keepdim=True))
        o.mul_(torch.exp(m - new)).add_(torch.einsum("bahk,bake->bahe", x, v[:, :, part]))
        m.copy_(new)
    o.div_(l)
    return [o, (m + l.log()).squeeze(-1)]
# %% right (backwards, all divided pieces merged at the end)
def attend_in_blocks(q, k, v, block_size):
    outs, logs = [], []
    for end in range(k.size(-2), 0, -block_size):
        begin = max(0, end - block_size)
        x = torch.matmul(q, k[..., begin:end, :].transpose(-1, -2)) / math.sqrt(q.size(-1))
        logs.append(torch.logsumexp(x, -1))
        outs.append(torch.softmax(x, -1) @ v[..., begin:end, :])
    lse = torch.logsumexp(torch.stack(logs), 0)
    return sum((one - lse).exp()[..., None] * o for one, o in zip(logs, outs)), lse
# %% wrong (keeps autograd's graph): which scores are needed once their block is done?
def attend_in_blocks(q, k, v, block_size):
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    pieces = zip(torch.split(k, block_size, -2), torch.split(v, block_size, -2))
    o, lse = torch.zeros_like(q), torch.full_like(q[..., 0], -math.inf)
    for piece in pieces:
        o, lse = merge(o, lse, *attend_piece(q, *piece))
    return o.detach(), lse.detach()
