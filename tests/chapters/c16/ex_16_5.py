# %% wrong (forgets the states): do the weights, gradients and optimizer states take no memory?
# max(0, memory_bytes - states) → memory_bytes
# %% wrong (gives a rank's part): that is one rank's part
# return (own - own % 2) * num_ranks → return (own - own % 2) // (2 * num_ranks) * 2 * num_ranks
# %% wrong (rounds to the ranks): which the zigzag takes
# return (own - own % 2) * num_ranks → return own * num_ranks
# %% wrong (forgets the ring): what is on its way in the ring takes memory, too
# ring = 16 * d if num_ranks > 1 else 0 → ring = 0
# %% wrong (gives one rank a ring): one rank alone has no ring
# 16 * d if num_ranks > 1 else 0 → 16 * d
# %% wrong (forgets recomputation): with every layer recomputed, what does a layer keep?
# 2 * d * (num_layers - 1) + 34 * d if is_recomputed else 34 * d * num_layers → 34 * d * num_layers
# %% wrong (always recomputes): does a layer keep its input alone?
# 34 * d if is_recomputed else 34 * d * num_layers → 34 * d
# %% wrong (forgets the layer at work): where is the layer that is being recomputed?
# 2 * d * (num_layers - 1) + 34 * d if → 2 * d * num_layers if
# %% wrong (counts its input twice): is the input of the layer at work counted twice?
# 2 * d * (num_layers - 1) + 34 * d if → 2 * d * num_layers + 34 * d if
# %% wrong (gives every layer a ring): does every layer have something in the ring
# ring = 16 * d if → ring = 16 * d * num_layers if
# %% wrong (divides by bytes of 32 bits): what does a rank hold for each token of its own?
# // (layers + ring) → // (2 * (layers + ring))
# %% wrong (forgets that nothing may fit): what if not even the weights fit?
# max(0, memory_bytes - states) → (memory_bytes - states)
# %% wrong (gives at least a little): then 0 is asked
# return (own - own % 2) * num_ranks → return max(2, own - own % 2) * num_ranks
# %% wrong (gives a float): not a whole number
# // (layers + ring) → / (layers + ring) // 1
# %% wrong (rounds up): more than there are
# own - own % 2 → own + own % 2
# %% wrong (raises): an impossible machine
# -     own = max(0, memory_bytes - states) // (layers + ring)  # tokens of a rank
# +     if states >= memory_bytes:
# +         raise MemoryError("an impossible machine")
# +     own = (memory_bytes - states) // (layers + ring)
# %% right (searches)
def longest_sequence(memory_bytes, states, d, num_layers, num_ranks, is_recomputed):
    def fits(s):
        own = s // num_ranks
        kept = own * d * ((2 * (num_layers - 1) + 34) if is_recomputed else 34 * num_layers)
        return states + kept + (16 * d * own if num_ranks != 1 else 0) <= memory_bytes

    step, low, high = 2 * num_ranks, 0, 1
    while fits(high * step):
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * step) else (low, middle)
    return low * step
# %% right (by branches)
def longest_sequence(memory_bytes, states, d, num_layers, num_ranks, is_recomputed):
    if states >= memory_bytes:
        return 0
    per_token = 0
    for layer in range(num_layers):
        per_token += 2 * d if is_recomputed and layer else 34 * d
    per_token += bool(num_ranks - 1) * 4 * 4 * d
    own = math.floor((memory_bytes - states) / per_token)
    while own % 2:
        own -= 1
    return own * num_ranks
# %% right (a tensor)
def longest_sequence(memory_bytes, states, d, num_layers, num_ranks, is_recomputed):
    each = d * ((32 + 2 * num_layers if is_recomputed else 34 * num_layers) + 16 * (num_ranks > 1))
    chunks = torch.tensor(memory_bytes - states).clamp(min=0) // (2 * each)
    return chunks * 2 * num_ranks
# %% right (whole chunks)
def longest_sequence(memory_bytes, states, d, num_layers, num_ranks, is_recomputed):
    free = memory_bytes - states
    of_a_layer, of_input = 34 * d, 2 * d
    kept = of_input * num_layers + (of_a_layer - of_input) * (1 if is_recomputed else num_layers)
    travelling = 0 if num_ranks == 1 else 16 * d
    chunk = int(free // (2 * (kept + travelling)))
    return max(chunk, 0) * 2 * num_ranks
