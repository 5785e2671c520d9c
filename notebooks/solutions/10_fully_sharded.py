# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %%
# Exercise 10.1
def flatten_pad_shard(tensors, rank, world_size):
    flat = torch.cat([t.detach().reshape(-1) for t in tensors])
    length = -(-flat.numel() // world_size)  # rounded up
    flat = F.pad(flat, (0, length * world_size - flat.numel()))
    return flat[rank * length : (rank + 1) * length].clone()


# %%
# Exercise 10.2
def clipped_step(optimizer, shards, max_norm):
    square = sum((shard.grad**2).sum() for shard in shards)
    dist.all_reduce(square)
    norm = square.sqrt().item()
    if norm > max_norm:
        for shard in shards:
            shard.grad *= max_norm / norm
    optimizer.step()
    return norm


# %%
# Exercise 10.3
def forward_prefetched(shards, shapes, x):
    def start(i):
        gathered = shards[i].new_empty(shards[i].numel() * dist.get_world_size())
        return dist.all_gather_into_tensor(gathered, shards[i], async_op=True), gathered

    following = start(0)
    for i, (rows, columns) in enumerate(shapes):
        work, gathered = following
        work.wait()
        weight = gathered[: rows * columns].view(rows, columns)
        if i + 1 < len(shapes):
            following = start(i + 1)
        x = torch.tanh(x @ weight.T)
    return x


# %%
# Exercise 10.4
def reduce_scatter_gradients(parameters):
    world_size = dist.get_world_size()
    pieces = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([piece.detach().reshape(-1) for piece in pieces])
    length = -(-flat.numel() // world_size)
    flat = F.pad(flat, (0, length * world_size - flat.numel()))
    shard = flat.new_empty(length)
    dist.reduce_scatter_tensor(shard, flat, op=dist.ReduceOp.AVG)
    for p in parameters:
        p.grad = None
    return shard


# %%
# Exercise 10.5
def peak_bytes(numels, world_size, reshard):
    shards = [-(-n // world_size) for n in numels]
    peaks = []
    for k in range(len(numels)):
        gathered = shards[k] if reshard else sum(shards[: k + 1])  # as shards; a whole one is world_size of them
        whole = world_size * (gathered + shards[k])  # parameters, and the gradients of unit k
        peaks.append(4 * (whole + sum(shards[k:])))
    return 12 * sum(shards) + max(peaks)


# %%
# Exercise 10.6
def orthogonalise_shards(shards, orthogonalise):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    rows = [torch.empty_like(shard) for shard in shards]
    parts = [None] * len(shards)  # where this rank is the owner, the matrix's parts
    for i, shard in enumerate(shards):
        owner = i % world_size
        if rank == owner:
            parts[i] = [torch.empty_like(shard) for _ in range(world_size)]
        dist.gather(shard, parts[i], dst=owner)
    for i in range(rank, len(shards), world_size):
        parts[i] = list(orthogonalise(torch.cat(parts[i])).chunk(world_size))
    for i, part in enumerate(parts):
        dist.scatter(rows[i], part, src=i % world_size)
    return rows
