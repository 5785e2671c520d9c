# %% wrong (gathers when needed): the gather of layer 1 had not been started
# -     following = start(0)
# +
# work, gathered = following → work, gathered = start(i)
# -         if i + 1 < len(shapes):
# -             following = start(i + 1)
# +
# %% wrong (starts after computing): the gather of layer 1 had not been started
# -         if i + 1 < len(shapes):
# -             following = start(i + 1)
# -         x = torch.tanh(x @ weight.T)
# +         x = torch.tanh(x @ weight.T)
# +         if i + 1 < len(shapes):
# +             following = start(i + 1)
# %% wrong (waits inside): had been waited for already
# -         return dist.all_gather_into_tensor(gathered, shards[i], async_op=True), gathered
# +         dist.all_gather_into_tensor(gathered, shards[i])
# +         return None, gathered
# work.wait() → pass
# %% wrong (waits as soon as it has started): had been waited for already
# following = start(i + 1) → following = start(i + 1); following[0].wait()
# %% wrong (never waits): nobody waited for 5 of the 5 gathers
# work.wait() → pass
# %% wrong (waits after computing): read before its gather was waited for
# -         work.wait()
# +
# x = torch.tanh(x @ weight.T) → x = torch.tanh(x @ weight.T); work.wait()
# %% wrong (gathers all first): 5 gathered weights were alive at once
# following = start(0) → following = [start(i) for i in range(len(shapes))]
# work, gathered = following → work, gathered = following[i]
# -         if i + 1 < len(shapes):
# -             following = start(i + 1)
# +
# %% wrong (keeps the views): 5 gathered weights were alive at once
# following = start(0) → following, kept = start(0), []
# x = torch.tanh(x @ weight.T) → x = torch.tanh(x @ weight.T); kept.append(weight)
# %% wrong (keeps copies): 5 gathered weights were alive at once
# following = start(0) → following, copies = start(0), []
# x = torch.tanh(x @ weight.T) → copies.append(weight.clone()); x = torch.tanh(x @ copies[i].T)
# %% wrong (starts while the last one has a name): 3 gathered weights were alive at once
# -         work, gathered = following
# -         work.wait()
# -         weight = gathered[: rows * columns].view(rows, columns)
# -         if i + 1 < len(shapes):
# -             following = start(i + 1)
# +         work, gathered = following
# +         if i + 1 < len(shapes):
# +             following = start(i + 1)
# +         work.wait()
# +         weight = gathered[: rows * columns].view(rows, columns)
# %% wrong (ignores the padding): is invalid for input of size
# gathered[: rows * columns] → gathered
# %% wrong (cuts the wrong end): which are padding?
# gathered[: rows * columns] → gathered[len(gathered) - rows * columns :]
# %% wrong (forgets the last tanh): a tanh behind the last layer
# x = torch.tanh(x @ weight.T) → x = torch.tanh(x @ weight.T) if i + 1 < len(shapes) else x @ weight.T
# %% wrong (averages the activations): computed with every weight
# x = torch.tanh(x @ weight.T) → x = torch.tanh(x @ weight.T); dist.all_reduce(x, op=dist.ReduceOp.AVG)
# %% wrong (gathers the first once more): 6 gathers were called for 5 layers
# -         if i + 1 < len(shapes):
# -             following = start(i + 1)
# +         following = start((i + 1) % len(shapes))
# %% wrong (gathers float64): was given a part, (8,) in float32
# shards[i].new_empty(shards[i].numel() * dist.get_world_size()) → torch.empty(len(shards[i]) * dist.get_world_size(), dtype=torch.float64)
# %% wrong (computes in float64): is float64, and should be float32
# x @ weight.T → x.double() @ weight.T.double()
# %% wrong (knows three ranks): parts, one behind the other along dim 0
# dist.get_world_size() → 3
# %% wrong (rank 0 gathers once more): the ranks do not do the same
# return x → x if dist.get_rank() else dist.all_gather_into_tensor(gathered, shards[-1]); return x
# %% wrong (changes x): x was changed in place
# x = torch.tanh(x @ weight.T) → x = torch.tanh(x.mul_(1) if i else x.mul_(2).div_(2.5) @ weight.T)
# %% wrong (empties the shards): shards holds other items
# return x → shards.clear(); return x
# %% wrong (returns nothing): the result is None
# return x → x

# %% wrong (uses its shards alone): no all-gather was called
def forward_prefetched(shards, shapes, x):
    for shard, (rows, columns) in zip(shards, shapes):
        whole = shard.repeat(dist.get_world_size())[: rows * columns]
        x = torch.tanh(x @ whole.view(rows, columns).T)
    return x

# %% right (with lists, the first one at once)
def forward_prefetched(shards, shapes, x):
    def start(i, is_async=True):
        parts = [torch.empty_like(shards[i]) for _ in range(dist.get_world_size())]
        return parts, dist.all_gather(parts, shards[i], async_op=is_async)

    pending = [start(0, False)]
    for i, (rows, columns) in enumerate(shapes):
        parts, work = pending.pop()
        if work is not None:
            work.wait()
        weight = torch.cat(parts)[: rows * columns].view(rows, columns)
        del parts
        if i + 1 < len(shapes):
            pending.append(start(i + 1))
        x = (x @ weight.T).tanh()
    return x

# %% right (with two buffers)
def forward_prefetched(shards, shapes, x):
    longest = max(shard.numel() for shard in shards) * dist.get_world_size()
    buffers = [shards[0].new_empty(longest) for _ in range(2)]

    def start(i):
        into = buffers[i % 2][: shards[i].numel() * dist.get_world_size()]
        return dist.all_gather_into_tensor(into, shards[i], async_op=True), into

    works = {0: start(0)}
    for i, shape in enumerate(shapes):
        if i + 1 < len(shapes):
            works[i + 1] = start(i + 1)
        work, gathered = works.pop(i)
        work.wait()
        x = torch.tanh(F.linear(x, gathered[: shape[0] * shape[1]].view(shape)))
    return x

# %% right (empties storages)
def forward_prefetched(shards, shapes, x):
    wholes = [shard.new_empty(len(shard) * dist.get_world_size()) for shard in shards]
    for whole in wholes:
        whole.untyped_storage().resize_(0)

    def start(i):
        wholes[i].untyped_storage().resize_(wholes[i].nbytes)
        return dist.all_gather_into_tensor(wholes[i], shards[i], async_op=True)

    works = [start(0)]
    for i, (shape, whole) in enumerate(zip(shapes, wholes)):
        works[i].wait()
        if i + 1 < len(shapes):
            works.append(start(i + 1))
        x = torch.einsum("bi,oi->bo", x, whole[: shape[0] * shape[1]].view(shape)).tanh()
        whole.untyped_storage().resize_(0)
    return x
