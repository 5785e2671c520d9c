# %% wrong (the rank before): that is the shard of another rank
#     old, new = -(-numel →     rank = (rank - 1) % world_size; old, new = -(-numel
# %% wrong (shards that round down): should hold
# old, new = -(-numel // old_world_size), -(-numel // world_size)  # numbers in a shard → old, new = -(-numel // old_world_size), numel // world_size
# %% wrong (no padding): and all ranks should hold
# -     shard = torch.zeros(new)
# -     if pieces:
# -         shard[: stop - start] = torch.cat(pieces)
# -     return shard
# +     return torch.cat(pieces) if pieces else torch.zeros(0)
# %% wrong (zeros in front): zeros belong behind the numbers
# shard[: stop - start] = → shard[new - (stop - start) :] =
# %% wrong (its own old file): that is what this rank's own old file begins with
def reshard(read, numel, old_world_size, rank, world_size):
    old, new = -(-numel // old_world_size), -(-numel // world_size)
    shard = torch.zeros(new)
    mine = read(min(rank, old_world_size - 1), 0, min(old, new))
    shard[: len(mine)] = mine
    return shard
# %% wrong (one number too far): from where to where does this shard reach?
def reshard(read, numel, old_world_size, rank, world_size):
    old, new = -(-numel // old_world_size), -(-numel // world_size)
    shard = torch.zeros(new)
    for i in range(new):
        place = rank * new + i + 1
        if place < numel:
            shard[i] = read(place // old, place % old, place % old + 1)[0]
    return shard
# %% wrong (begins at a rounded place): it begins at a place that rounds down
def reshard(read, numel, old_world_size, rank, world_size):
    old, new = -(-numel // old_world_size), -(-numel // world_size)
    shard = torch.zeros(new)
    for i in range(new):
        place = rank * (numel // world_size) + i
        if place < numel:
            shard[i] = read(place // old, place % old, place % old + 1)[0]
    return shard
# %% wrong (two old files at most): from where to where does this shard reach?
def reshard(read, numel, old_world_size, rank, world_size):
    old, new = -(-numel // old_world_size), -(-numel // world_size)
    start, stop = rank * new, min((rank + 1) * new, numel)
    shard = torch.zeros(new)
    if start < stop:
        r, offset = divmod(start, old)
        first = read(r, offset, min(old, offset + stop - start))
        shard[: len(first)] = first
        left = stop - start - len(first)
        if left > 0:
            second = read(r + 1, 0, min(left, old))
            shard[len(first) : len(first) + len(second)] = second
    return shard
# %% wrong (reads everything): numbers were read for the
def reshard(read, numel, old_world_size, rank, world_size):
    old, new = -(-numel // old_world_size), -(-numel // world_size)
    whole = torch.cat([read(r, 0, old) for r in range(old_world_size)])[:numel]
    whole = torch.cat([whole, torch.zeros(new * world_size - numel)])
    return whole[rank * new : (rank + 1) * new].clone()
# %% wrong (reads the padding): numbers were read for the
def reshard(read, numel, old_world_size, rank, world_size):
    old, new = -(-numel // old_world_size), -(-numel // world_size)
    start, stop = rank * new, (rank + 1) * new
    shard = torch.zeros(new)
    for r in range(old_world_size):
        first, last = max(start, r * old), min(stop, (r + 1) * old)
        if first < last:
            shard[first - start : last - start] = read(r, first - r * old, last - r * old)
    return shard
# %% wrong (places in the whole, not in the file): of a file that holds
def reshard(read, numel, old_world_size, rank, world_size):
    old, new = -(-numel // old_world_size), -(-numel // world_size)
    start, stop = rank * new, min((rank + 1) * new, numel)
    pieces = [read(r, max(start, r * old), min(stop, (r + 1) * old)) for r in range(start // old, stop // old + 1)]
    return F.pad(torch.cat(pieces), (0, new - (stop - start)))
# %% wrong (a rank too many): and 4 ranks saved
def reshard(read, numel, old_world_size, rank, world_size):
    return torch.cat([read(r, 0, 1) for r in range(old_world_size + 1)])
# %% wrong (ranks from one): from where to where
def reshard(read, numel, old_world_size, rank, world_size):
    old, new = -(-numel // old_world_size), -(-numel // world_size)
    return torch.cat([read(1 + (rank * new + i) // old, (rank * new + i) % old, (rank * new + i) % old + 1) for i in range(new)])
# %% wrong (a column): should be flat
def reshard(read, numel, old_world_size, rank, world_size):
    return torch.zeros(-(-numel // world_size), 1)
# %% wrong (float64): should be float32
def reshard(read, numel, old_world_size, rank, world_size):
    return torch.zeros(-(-numel // world_size), dtype=torch.float64)
# %% wrong (a list): a tensor is wanted
def reshard(read, numel, old_world_size, rank, world_size):
    return [0.0] * -(-numel // world_size)
# %% right (number by number)
def reshard(read, numel, old_world_size, rank, world_size):
    old, new = -(-numel // old_world_size), -(-numel // world_size)
    shard = torch.zeros(new)
    for i in range(new):
        place = rank * new + i
        if place < numel:
            shard[i] = read(place // old, place % old, place % old + 1)[0]
    return shard
# %% right (from the first file on)
def reshard(read, numel, old_world_size, rank, world_size):
    old, new = math.ceil(numel / old_world_size), math.ceil(numel / world_size)
    at, end = rank * new, min((rank + 1) * new, numel)
    parts = []
    while at < end:
        r, offset = divmod(at, old)
        length = min(old - offset, end - at)
        parts.append(read(r, offset, offset + length))
        at += length
    parts.append(torch.zeros(new - sum(map(len, parts))))
    return torch.cat(parts)
# %% right (asks for empty pieces too, NumPy in between)
def reshard(read, numel, old_world_size, rank, world_size):
    import numpy as np
    old, new = (numel + old_world_size - 1) // old_world_size, (numel + world_size - 1) // world_size
    start, stop = rank * new, min((rank + 1) * new, numel)
    parts = []
    for r in range(old_world_size):
        first = max(0, min(start - r * old, old))
        parts.append(read(r, first, max(first, min(stop - r * old, old))).numpy())
    found = torch.from_numpy(np.concatenate(parts))
    return F.pad(found, (0, new - len(found)))
