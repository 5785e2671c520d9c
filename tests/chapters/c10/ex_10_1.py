# %% wrong (goes by float64): whole numbers
# t.detach().reshape(-1) for → t.detach().double().reshape(-1) for
# * length].clone() → * length].clone().to(tensors[0].dtype)
# %% wrong (does not pad): where do all of them go
# F.pad(flat, (0, length * world_size - flat.numel())) → flat
# %% wrong (one part more than needed): are so many zeros needed
# length = -(-flat.numel() // world_size)  # rounded up → length = flat.numel() // world_size + 1
# %% wrong (returns a view): is a view of
# (rank + 1) * length].clone() → (rank + 1) * length]
# %% wrong (a view where nothing is padded): shares memory with a tensor that was given
# -     flat = F.pad(flat, (0, length * world_size - flat.numel()))
# +     if len(tensors) == world_size == 1:
# +         return tensors[0].detach().view(-1)
# +     flat = F.pad(flat, (0, length * world_size - flat.numel()))
# %% wrong (deals them out): were the numbers dealt out one by one?
# [rank * length : (rank + 1) * length] → [rank::world_size]
# %% wrong (takes its neighbour's): it is another rank's
# [rank * length : (rank + 1) * length] → .roll(-length)[rank * length : (rank + 1) * length]
# %% wrong (keeps two dimensions): one flat row of numbers is asked
# [rank * length : (rank + 1) * length] → .view(world_size, length)[rank : rank + 1]
# %% wrong (repeats numbers): what fills it up is not zeros
# F.pad(flat, (0, length * world_size - flat.numel())) → torch.cat([flat, flat])
# %% wrong (pads in front): do the zeros stand in front?
# (0, length * world_size - flat.numel()) → (length * world_size - flat.numel(), 0)
# %% wrong (sorts them): do they stand in another order?
# length].clone() → length].sort()[0]
# %% wrong (reads transposed ones as they lie): do they stand in the order of memory?
# t.detach().reshape(-1) → (t.mT if t.dim() == 2 else t).detach().reshape(-1)
# %% wrong (the longest first): do they stand in another order?
# t.detach().reshape(-1) for t in tensors → t.detach().reshape(-1) for t in sorted(tensors, key=lambda t: -t.numel())
# %% wrong (matrices first): do they stand in another order?
# t.detach().reshape(-1) for t in tensors → t.detach().reshape(-1) for t in sorted(tensors, key=lambda t: -t.dim())
# %% wrong (views instead of reshaping): view size is not compatible
# reshape → view
# %% wrong (keeps the gradient): requires a gradient
# t.detach() → t
# %% wrong (lets the parameters go on in one flat tensor): lies elsewhere in memory now
# -     length = -(-flat.numel() // world_size)  # rounded up
# +     length = -(-flat.numel() // world_size)
# +     for t, piece in zip(tensors, flat.split([t.numel() for t in tensors])):
# +         t.data = piece.view_as(t)
# %% wrong (shards each tensor): was each tensor cut up by itself?
def flatten_pad_shard(tensors, rank, world_size):
    parts = []
    for t in tensors:
        length = -(-t.numel() // world_size)
        flat = F.pad(t.detach().reshape(-1), (0, length * world_size - t.numel()))
        parts.append(flat[rank * length : (rank + 1) * length])
    return torch.cat(parts)

# %% right (fills an empty shard)
def flatten_pad_shard(tensors, rank, world_size):
    with torch.no_grad():
        length = (sum(t.numel() for t in tensors) + world_size - 1) // world_size
        shard = torch.zeros(length, dtype=tensors[0].dtype, device=tensors[0].device)
        mine = torch.cat([t.flatten() for t in tensors])[rank * length : (rank + 1) * length]
        shard[: len(mine)] = mine
    return shard

# %% wrong (fills it on the CPU): the shard is on cpu
# .dtype, device=tensors[0].device) → .dtype)
