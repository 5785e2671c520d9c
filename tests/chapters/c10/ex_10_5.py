# %% wrong (forward only): the peak of the forward pass alone
# world_size * (gathered + shards[k])  # parameters, and the gradients of unit k → world_size * gathered
# peaks.append(4 * (whole + sum(shards[k:]))) → peaks.append(4 * whole)
# %% wrong (forgets the whole gradient): the whole gradients are missing in it
# world_size * (gathered + shards[k])  # → world_size * gathered  #
# %% wrong (forgets the shards of gradients): the shards of gradients are missing in it
# 4 * (whole + sum(shards[k:])) → 4 * whole
# %% wrong (all gradient shards at once): that are not made yet
# sum(shards[k:]) → sum(shards)
# %% wrong (frees the gradient first): before its shard has come
# sum(shards[k:]) → sum(shards[k + 1 :])
# %% wrong (forgets what is always there): something is missing in it that is always there
# return 12 * sum(shards) + max(peaks) → return max(peaks)
# %% wrong (between steps): that is what is held between steps
# return 12 * sum(shards) + max(peaks) → return 16 * sum(shards)
# %% wrong (ignores reshard): right for the other value of reshard
# shards[k] if reshard else sum(shards[: k + 1]) → shards[k]
# %% wrong (lets nothing go): stay gathered in it when their backward pass is over
# sum(shards[: k + 1])  # → sum(shards)  #
# %% wrong (begins at the front): its backward pass begins with the first unit
# shards = [-(-n // world_size) for n in numels] → shards = [-(-n // world_size) for n in numels[::-1]]
# %% wrong (counts in numbers): how many bytes has one?
# return 12 * sum(shards) + max(peaks) → return (12 * sum(shards) + max(peaks)) // 4
# %% wrong (counts bits): that is too much
# return 12 * sum(shards) → return 8 * 12 * sum(shards)
# %% wrong (does not pad): the padding is missing in it
# [-(-n // world_size) → [n / world_size
# %% endless (goes back for ever): no end after
# peaks = [] → peaks = []; [peaks.clear() for _ in iter(int, 1)]

# %% right (one after the other)
def peak_bytes(numels, world_size, reshard):
    padded = [n + -n % world_size for n in numels]
    held = 12.0 * sum(padded) / world_size
    moments = []
    for whole in padded:
        held += 4 * whole
        moments.append(held)
        held -= 4 * whole * reshard
    for whole in padded[::-1]:
        held += 4 * whole * reshard + 4 * whole + 4 * whole / world_size
        moments.append(held)
        held -= 8 * whole
    return torch.tensor(moments, dtype=torch.float64).max()
