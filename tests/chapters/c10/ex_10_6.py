# %% wrong (rank 0 owns all): which belongs to rank
# owner = i % world_size → owner = 0
# range(rank, len(shards), world_size) → range(len(shards) if rank == 0 else 0)
# src=i % world_size → src=0
# %% wrong (side by side): do the ranks' rows stand one below the other
# torch.cat(parts[i])) → torch.cat(parts[i], dim=1)).reshape(-1, shards[i].shape[1])
# %% wrong (the last rank's rows first): do the ranks' rows stand in the order of the ranks?
# torch.cat(parts[i]) → torch.cat(parts[i][::-1])
# %% wrong (transposes it): it is that of which rows?
# orthogonalise(torch.cat(parts[i])).chunk → orthogonalise(torch.cat(parts[i]).T).T.contiguous().chunk
# %% wrong (mixes rows): from where does each of its rows come?
# torch.cat(parts[i]) → torch.stack(parts[i], dim=1).flatten(0, 1)
# %% wrong (sends in bfloat16 and back): it is nearly one, and was rounded on the way
# dist.gather(shard, parts[i] → dist.gather(shard.float().to(shard.dtype), parts[i]
# %% wrong (sends the parts to the wrong ranks): they are another rank's
# .chunk(world_size)) → .chunk(world_size))[::-1]
# %% wrong (keeps whole matrices): the whole matrix came back
# return rows → return [torch.cat([row] * world_size) for row in rows]
# %% wrong (returns what it owns): one for each matrix
# return rows → return rows[rank::world_size]
# %% wrong (in the order of owners): should have
# return rows → return [rows[i] for owner in range(world_size) for i in range(owner, len(rows), world_size)]
# %% wrong (of another matrix): these rows are not right: they are those of another matrix
# return rows → return [rows[0] if row.shape == rows[0].shape else row for row in rows]
# %% wrong (writes into its shards): was changed in place
# rows = [torch.empty_like(shard) for shard in shards] → rows = shards
# %% wrong (twice): once each is enough
# list(orthogonalise( → [orthogonalise(torch.cat(parts[i]))] and list(orthogonalise(
# %% wrong (forgets a matrix): who takes care of the rest?
# range(rank, len(shards), world_size) → range(rank, len(shards) - 1, world_size)
# %% wrong (never has more than two): who takes care of the rest?
# range(rank, len(shards), world_size) → [i for i in (rank, rank + world_size) if i < len(shards)]
# %% wrong (a vector): and it takes a matrix
# orthogonalise(torch.cat(parts[i])).chunk → orthogonalise(torch.cat(parts[i]).flatten()).chunk
# %% wrong (scales the result): from whom did they come?
# return rows → return [row / 2 for row in rows]
# %% wrong (returns nothing): is it returned
# return rows → rows

# %% wrong (each rank its rows alone): are these the rows of one rank alone?
def orthogonalise_shards(shards, orthogonalise):
    return [orthogonalise(shard) for shard in shards]

# %% wrong (everybody gathers everything): which belongs to rank
def orthogonalise_shards(shards, orthogonalise):
    rows = []
    for shard in shards:
        parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, shard)
        rows.append(orthogonalise(torch.cat(parts)).chunk(dist.get_world_size())[dist.get_rank()])
    return rows

# %% wrong (the owner broadcasts the whole result): are enough: who needs which rows?
def orthogonalise_shards(shards, orthogonalise):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    wholes = []
    for i, shard in enumerate(shards):
        parts = [torch.empty_like(shard) for _ in range(world_size)] if rank == i % world_size else None
        dist.gather(shard, parts, dst=i % world_size)
        wholes.append(torch.cat(parts) if parts else torch.cat([torch.empty_like(shard)] * world_size))
    for i in range(rank, len(shards), world_size):
        wholes[i] = orthogonalise(wholes[i]).contiguous()
    for i, whole in enumerate(wholes):
        dist.broadcast(whole, src=i % world_size)
    return [whole.chunk(world_size)[rank] for whole in wholes]

# %% wrong (the owner gathers with everybody): are enough: who needs which rows?
def orthogonalise_shards(shards, orthogonalise):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    rows, parts = [torch.empty_like(shard) for shard in shards], []
    for shard in shards:
        parts.append([torch.empty_like(shard) for _ in range(world_size)])
        dist.all_gather(parts[-1], shard)
    for i in range(rank, len(shards), world_size):
        parts[i] = list(orthogonalise(torch.cat(parts[i])).chunk(world_size))
    for i, part in enumerate(parts):
        dist.scatter(rows[i], part if rank == i % world_size else None, src=i % world_size)
    return rows

# %% wrong (one matrix after the other): for whose result did it wait first?
def orthogonalise_shards(shards, orthogonalise):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    rows = [torch.empty_like(shard) for shard in shards]
    for i, shard in enumerate(shards):
        parts = [torch.empty_like(shard) for _ in range(world_size)] if rank == i % world_size else None
        dist.gather(shard, parts, dst=i % world_size)
        if parts:
            parts = list(orthogonalise(torch.cat(parts)).chunk(world_size))
        dist.scatter(rows[i], parts, src=i % world_size)
    return rows

# %% wrong (does not send back): they are not orthogonalised at all
def orthogonalise_shards(shards, orthogonalise):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    rows = [shard.clone() for shard in shards]
    for i, shard in enumerate(shards):
        parts = [torch.empty_like(shard) for _ in range(world_size)] if rank == i % world_size else None
        dist.gather(shard, parts, dst=i % world_size)
        if parts:
            rows[i] = orthogonalise(torch.cat(parts)).chunk(world_size)[rank]
    return rows

# %% right (messages from rank to rank)
def orthogonalise_shards(shards, orthogonalise):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = {i: [torch.empty_like(shards[i]) for _ in range(world_size)] for i in range(rank, len(shards), world_size)}

    def pass_on(outgoing, incoming):
        works = [dist.isend(tensor, to, tag=tag) for tensor, to, tag in outgoing if to != rank]
        works += [dist.irecv(tensor, source, tag=tag) for tensor, source, tag in incoming if source != rank]
        for work in works:
            work.wait()

    pass_on(
        [(shard, i % world_size, i) for i, shard in enumerate(shards)],
        [(part, source, i) for i, parts in mine.items() for source, part in enumerate(parts)],
    )
    for i, parts in mine.items():
        parts[rank].copy_(shards[i])
        mine[i] = [part.contiguous() for part in orthogonalise(torch.cat(parts)).chunk(world_size)]
    rows = [mine[i][rank] if i in mine else torch.empty_like(shard) for i, shard in enumerate(shards)]
    pass_on(
        [(part, to, i) for i, parts in mine.items() for to, part in enumerate(parts)],
        [(row, i % world_size, i) for i, row in enumerate(rows)],
    )
    return rows

# %% right (two all-to-alls)
def orthogonalise_shards(shards, orthogonalise):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    owned = [range(owner, len(shards), world_size) for owner in range(world_size)]
    own = sum(shards[i].numel() for i in owned[rank])
    to_owners = [sum(shards[i].numel() for i in each) for each in owned]
    sent = torch.cat([shards[0].new_empty(0), *(shards[i].reshape(-1) for each in owned for i in each)])
    came = sent.new_empty(world_size * own)
    dist.all_to_all_single(came, sent, [own] * world_size, to_owners)
    pieces = [part.split([shards[i].numel() for i in owned[rank]]) for part in came.split([own] * world_size)]
    done = [[] for _ in range(world_size)]
    for k, i in enumerate(owned[rank]):
        whole = orthogonalise(torch.cat([piece[k].view_as(shards[i]) for piece in pieces]))
        for to, part in enumerate(whole.chunk(world_size)):
            done[to].append(part.reshape(-1))
    back = torch.empty_like(sent)
    flat = torch.cat([sent.new_empty(0), *(part for each in done for part in each)])
    dist.all_to_all_single(back, flat, to_owners, [own] * world_size)
    numbers = iter(back.split([shards[i].numel() for each in owned for i in each]))
    rows = {i: next(numbers).view_as(shards[i]) for each in owned for i in each}
    return [rows[i] for i in range(len(shards))]
