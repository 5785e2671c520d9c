# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %%
# Exercise 16.1
def attend_in_blocks(q, k, v, block_size):
    scale = 1 / math.sqrt(q.shape[-1])
    m = q.new_full(q.shape[:-1], -torch.inf)  # largest score of each row so far
    total, o = torch.zeros_like(m), torch.zeros_like(q)  # sums of weights, of weighted values
    for keys, values in zip(k.split(block_size, dim=-2), v.split(block_size, dim=-2)):
        scores = q @ keys.mT * scale  # (b, a, s_q, block_size)
        larger = torch.maximum(m, scores.amax(-1))
        weights = (scores - larger.unsqueeze(-1)).exp()
        shrink = (m - larger).exp()
        total = total * shrink + weights.sum(-1)
        o = o * shrink.unsqueeze(-1) + weights @ values
        m = larger
    return o / total.unsqueeze(-1), m + total.log()


# %%
# Exercise 16.2
def ring_step(q, k, v, q_positions, k_positions, o, lse):
    sees = k_positions <= q_positions.unsqueeze(-1)  # (s_q, s_k)
    if not sees.any():
        return o, lse
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~sees, -torch.inf)
    both = torch.logaddexp(lse, scores.logsumexp(-1))
    finite = both.masked_fill(both == -torch.inf, 0).unsqueeze(-1)  # a row without keys: exp(−inf − 0) is 0
    return (lse.unsqueeze(-1) - finite).exp() * o + (scores - finite).exp() @ v, both


# %%
# Exercise 16.3
def share_out(lengths, num_chunks, num_ranks):
    seen = torch.cat([torch.arange(1, n + 1) for n in lengths])  # keys that each token sees
    work = seen.view(num_chunks, -1).sum(1).tolist()
    shares, load = [[] for _ in range(num_ranks)], [0] * num_ranks
    for chunk in sorted(range(num_chunks), key=lambda chunk: -work[chunk]):
        open_ranks = [r for r in range(num_ranks) if len(shares[r]) < num_chunks // num_ranks]
        rank = min(open_ranks, key=lambda r: load[r])
        shares[rank].append(chunk)
        load[rank] += work[chunk]
    return shares


# %%
# Exercise 16.4
def attention_bytes(b, heads, kv_heads, s, e, itemsize, num_ranks):
    head = b * s // num_ranks * e * itemsize  # one head of this rank's tokens
    hops = num_ranks - 1
    ring = 3 * hops * 2 * kv_heads * head  # keys and values twice, their gradients once
    ulysses = 2 * (2 * heads + 2 * kv_heads) * head * hops // num_ranks
    return ring, ulysses


# %%
# Exercise 16.5
def longest_sequence(memory_bytes, states, d, num_layers, num_ranks, is_recomputed):
    layers = 2 * d * (num_layers - 1) + 34 * d if is_recomputed else 34 * d * num_layers
    ring = 16 * d if num_ranks > 1 else 0
    own = max(0, memory_bytes - states) // (layers + ring)  # tokens of a rank
    return (own - own % 2) * num_ranks


# %%
# Exercise 16.6
def forward_within(blocks, x, budget_bytes):
    for num_recomputed in range(len(blocks) + 1):
        y = x
        with memory.Activations(nn.Sequential(*blocks)) as held:
            for i, block in enumerate(blocks):
                y = recompute(block, y, use_reentrant=False) if i < num_recomputed else block(y)
        if held.num_bytes <= budget_bytes:
            return y
    raise ValueError(f"{budget_bytes} bytes are too few: with every block recomputed {held.num_bytes} are held")
