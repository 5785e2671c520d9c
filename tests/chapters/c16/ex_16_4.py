# %% wrong (counts the forward pass): and the rank sent more: that is the forward pass alone
# 3 * hops → hops
# %% wrong (counts two passes alike): what travels with the keys and values?
# 3 * hops → 2 * hops
# %% wrong (lets the gradients go home): do the gradients of a rank's own keys make a hop more?
# ring = 3 * hops * 2 → ring = (3 * hops + (hops > 0)) * 2
# %% wrong (takes the heads of queries): whose heads travel in the ring?
# 2 * kv_heads * head  # keys → 2 * heads * head  # keys
# %% wrong (sends keys only): keys, or values?
# * 2 * kv_heads * head  # → * kv_heads * head  #
# %% wrong (makes a hop even alone): what does a rank alone send?
# hops = num_ranks - 1 → hops = max(1, num_ranks - 1)
# %% wrong (makes a hop too many): how many hops does a block of keys make
# 3 * hops → 3 * num_ranks * (num_ranks > 1)
# %% wrong (counts numbers): what does an element take, in bytes?
# * e * itemsize → * e
# %% wrong (counts the ring's bytes and Ulysses' numbers): ulysses is
# 2 * (2 * heads + 2 * kv_heads) * head * hops // num_ranks → 2 * (2 * heads + 2 * kv_heads) * head * hops // num_ranks // itemsize
# %% wrong (sends whole sequences): a rank has only its own tokens
# b * s // num_ranks → b * s
# %% wrong (sends whole sequences in Ulysses): ulysses is
# ulysses = 2 * → ulysses = num_ranks * 2 *
# %% wrong (counts one pass of Ulysses): that is the forward pass alone
# ulysses = 2 * → ulysses = 1 *
# %% wrong (takes equal heads): whose heads are fewer?
# (2 * heads + 2 * kv_heads) → 4 * heads
# %% wrong (forgets the way back): the outputs travel back, too
# (2 * heads + 2 * kv_heads) → (heads + 2 * kv_heads)
# %% wrong (sends everything): of each tensor a rank keeps a part
# head * hops // num_ranks → head * (num_ranks > 1)
# %% wrong (turns them round): both numbers are right, and they are exchanged
# return ring, ulysses → return ulysses, ring
# %% wrong (counts twice): count the tensors, their heads, and the hops
# return ring, ulysses → return 2 * ring, ulysses
# %% wrong (adds them): is 53248, not a list or tuple
# return ring, ulysses → return ring + ulysses
# %% right (in fractions, floats)
def attention_bytes(b, heads, kv_heads, s, e, itemsize, num_ranks):
    N, part = num_ranks, b * (s / num_ranks) * e * itemsize
    kv = 2 * kv_heads * part
    forward, backward = (N - 1) * kv, (N - 1) * kv + (N - 1) * kv
    sent = (1 - 1 / N) * part
    return [forward + backward, sent * (heads + 2 * kv_heads) + sent * heads + sent * heads + sent * (2 * kv_heads + heads)]
# %% right (a tensor)
def attention_bytes(b, heads, kv_heads, s, e, itemsize, num_ranks):
    n = torch.tensor([6 * kv_heads * num_ranks, 4 * (heads + kv_heads)])
    return n * (num_ranks - 1) * b * s * e * itemsize // num_ranks**2
# %% right (by counting tensors)
def attention_bytes(b, heads, kv_heads, s, e, itemsize, num_ranks):
    q = torch.empty(b, heads, s // num_ranks, e)
    k = torch.empty(b, kv_heads, s // num_ranks, e)
    ring = ulysses = 0
    for hop in range(num_ranks - 1):
        for tensor in (k, k, k, k, k, k):
            ring += tensor.numel() * itemsize
    for other in range(num_ranks - 1):
        for tensor in (q, k, k, q, q, k, k, q):
            ulysses += tensor.chunk(num_ranks, 1)[other].numel() * itemsize
    return ring, ulysses
