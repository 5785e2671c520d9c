# %% wrong (leaves out what is frozen): on every rank
# else p.grad for p in parameters] → else p.grad for p in parameters if p.requires_grad]
# %% wrong (trips over none): NoneType
# torch.zeros_like(p) if p.grad is None else p.grad for → p.grad for
# %% wrong (adds up): a sum and no mean
# , op=dist.ReduceOp.AVG) → )
# %% wrong (divides twice): the mean was taken twice
# dist.reduce_scatter_tensor(shard, flat, → dist.reduce_scatter_tensor(shard, flat / world_size,
# %% wrong (leaves missing ones out): came to reduce_scatter_tensor with 18 numbers
# p.grad for p in parameters] → p.grad for p in parameters if p.grad is not None or p.dim() > 1]
# %% wrong (does not pad): must make the whole
# F.pad(flat, (0, length * world_size - flat.numel())) → flat
# %% wrong (pads too much): are so many zeros needed
# length = -(-flat.numel() // world_size) → length = flat.numel() // world_size + 1
# %% wrong (missing ones count as the parameter): as what does a missing one count?
# torch.zeros_like(p) → p
# %% wrong (reduces everything): it took all_reduce: one reduce-scatter
# dist.reduce_scatter_tensor(shard, flat, op=dist.ReduceOp.AVG) → dist.all_reduce(flat, op=dist.ReduceOp.AVG)
# return shard → return flat[dist.get_rank() * length :][:length].clone()
# %% wrong (gathers the mean, too): it took reduce_scatter_tensor, all_gather_into_tensor
# op=dist.ReduceOp.AVG) → op=dist.ReduceOp.AVG); dist.all_gather_into_tensor(flat, shard)
# %% wrong (returns everything): where do all of them go
# -     dist.reduce_scatter_tensor(shard, flat, op=dist.ReduceOp.AVG)
# +     dist.reduce_scatter_tensor(shard, flat, op=dist.ReduceOp.AVG)
# +     shard = shard[: length // 2]
# %% wrong (returns a view): is a view of 192 bytes
# flat.new_empty(length) → flat.clone()[:length]
# %% wrong (sends nothing): this rank's own gradients
# dist.reduce_scatter_tensor(shard, flat, op=dist.ReduceOp.AVG) → shard = flat[dist.get_rank() * length :][:length].clone()
# %% wrong (exchanges parts): it is another rank's
# dist.reduce_scatter_tensor(shard, flat, → dist.reduce_scatter_tensor(shard, flat.roll(length),
# %% wrong (reduces in float32): it is nearly that: what is rounded
# torch.cat([piece.detach().reshape(-1) for → torch.cat([piece.detach().float().reshape(-1) for
# return shard → return shard.to(parameters[0].dtype)
# %% wrong (always float64): is float64, and should be float32
# torch.cat([piece.detach().reshape(-1) for → torch.cat([piece.detach().double().reshape(-1) for
# %% wrong (does not wait): nobody waited for a collective
# op=dist.ReduceOp.AVG) → op=dist.ReduceOp.AVG, async_op=True)
# %% wrong (keeps the gradients): it still holds 4 gradients
# p.grad = None → pass
# %% wrong (empties the parameters): parameters[0] was changed in place
# p.grad = None → p.grad = p.data.zero_() and None if p.numel() == 1 else None if p.data.zero_() is None else None
# %% wrong (freezes the parameters): parameters[0].requires_grad was changed
# p.grad = None → p.requires_grad_(False).grad = None
# %% wrong (returns nothing): the shard is None
# return shard → shard

# %% wrong (averages over those that have one): one reduce-scatter is enough
def reduce_scatter_gradients(parameters):
    world_size = dist.get_world_size()
    rows = []
    for there in (False, True):
        pieces = [torch.zeros_like(p) if p.grad is None else torch.ones_like(p) if there else p.grad for p in parameters]
        flat = torch.cat([piece.detach().reshape(-1) for piece in pieces])
        length = -(-flat.numel() // world_size)
        flat = F.pad(flat, (0, length * world_size - flat.numel()))
        rows.append(flat.new_empty(length))
        dist.reduce_scatter_tensor(rows[-1], flat)
    for p in parameters:
        p.grad = None
    return rows[0] / rows[1].clamp(min=1)

# %% right (sends nothing where there is nobody)
def reduce_scatter_gradients(parameters):
    world_size = dist.get_world_size()
    flat = torch.cat([torch.zeros(p.numel(), dtype=p.dtype) if p.grad is None else p.grad.flatten() for p in parameters])
    flat = F.pad(flat, (0, -len(flat) % world_size))
    shard = flat.chunk(world_size)[0].clone()
    if world_size > 1:
        dist.reduce_scatter_tensor(shard, flat, op=dist.ReduceOp.AVG)
    for p in parameters:
        p.grad = None
    return shard
