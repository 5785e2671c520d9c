# %% wrong (does not sort the tokens): was given other tokens than those that chose it
# dist.all_to_all_single(rows, x[order] → dist.all_to_all_single(rows, x
# %% wrong (does not exchange the counts): how does a rank know what will come
# dist.all_to_all_single(coming, going)  # one number for each rank → coming.copy_(going)
# %% wrong (sends float32): that is not right
# return results → return results.float().to(x.dtype)
# %% wrong (sends the rows twice): does a row travel to one rank only
# -     back = torch.empty_like(x)
# +     dist.all_to_all_single(torch.empty_like(rows), x[order], coming, going)
# +     back = torch.empty_like(x)
# %% wrong (leaves the results sorted): in which order were the tokens
# return results → return back
# %% wrong (sorts twice): what undoes a sort
# -     results[order] = back
# +     results = back[order]
# %% wrong (a rank without tokens returns at once): the ranks do not do the same
# -     order = ranks.argsort(stable=True)
# +     if not len(x):
# +         return x
# +     order = ranks.argsort(stable=True)
# %% wrong (forgets the expert): was given 0 rows
# expert(rows), going, coming → rows, going, coming
# %% wrong (sends the rows back, not the results): as if no expert had seen them
# -     dist.all_to_all_single(back, expert(rows), going, coming)
# +     expert(rows)
# +     dist.all_to_all_single(back, rows, going, coming)
# %% wrong (results back with the counts of the way there): Split sizes doesn't match total dim 0 size
# expert(rows), going, coming → expert(rows), coming, going
# %% wrong (an order that mixes up rows of a rank): does each row come back into the place
# return results → return results.roll(1, 0) if len(results) > 1 else results
# %% wrong (gives its expert one row at a time, without the width): what is not rows of x
# expert(rows), going → torch.stack([expert(row) for row in rows]) if len(rows) else rows, going
# %% wrong (calls the course's): it is yours to write
# -     world_size = dist.get_world_size()
# +     from course_utils.parallel.experts import all_to_all
# +     world_size = dist.get_world_size()
# dist.all_to_all_single(rows, x[order], coming, going) → rows = all_to_all(x[order], going, coming)
# %% wrong (does not wait): nobody waited for a collective
# dist.all_to_all_single(back, expert(rows), going, coming) → dist.all_to_all_single(back, expert(rows), going, coming, async_op=True)
# %% right (asynchronous, and waits)
def visit_experts(x, ranks, expert):
    n = dist.get_world_size()
    order = ranks.sort(stable=True).indices
    going = torch.bincount(ranks, minlength=n)
    coming = torch.empty(n, dtype=torch.long)
    dist.all_to_all_single(coming, going, async_op=True).wait()
    rows = torch.empty(coming.sum().item(), x.shape[1], dtype=x.dtype)
    work = dist.all_to_all_single(rows, x[order].contiguous(), coming.tolist(), going.tolist(), async_op=True)
    work.wait()
    done = expert(rows) if len(rows) else rows
    back = torch.empty(len(x), x.shape[1], dtype=x.dtype)
    dist.all_to_all_single(back, done, going.tolist(), coming.tolist())
    return torch.zeros_like(x).index_copy(0, order, back)
# %% right (counts as objects, the expert once for each source)
def visit_experts(x, ranks, expert):
    rank, n = dist.get_rank(), dist.get_world_size()
    where = [[t for t, r in enumerate(ranks.tolist()) if r == to] for to in range(n)]
    lengths = [len(tokens) for tokens in where]
    everyone = [None] * n
    dist.all_gather_object(everyone, lengths)
    coming = [theirs[rank] for theirs in everyone]
    flat = [t for tokens in where for t in tokens]
    rows = x.new_empty(sum(coming), x.shape[1])
    dist.all_to_all_single(rows, x[flat], coming, lengths)
    results = torch.cat([expert(part) for part in rows.split(coming)])
    back = torch.empty_like(x)
    dist.all_to_all_single(back, results, lengths, coming)
    answer = torch.empty_like(x)
    answer[flat] = back
    return answer
# %% right (by functional collectives)
def visit_experts(x, ranks, expert):
    from torch.distributed import _functional_collectives as functional

    n = dist.get_world_size()
    order, going = ranks.argsort(stable=True), torch.bincount(ranks, minlength=n)
    coming = torch.empty_like(going)
    dist.all_to_all_single(coming, going)
    going, coming = going.tolist(), coming.tolist()
    rows = functional.all_to_all_single(x[order], coming, going, dist.group.WORLD)
    back = functional.all_to_all_single(expert(rows), going, coming, dist.group.WORLD)
    return back[order.argsort()]
# %% right (rows that stay do not travel)
def visit_experts(x, ranks, expert):
    rank, n = dist.get_rank(), dist.get_world_size()
    here = ranks == rank
    away = (~here).nonzero().flatten()
    away = away[ranks[away].argsort(stable=True)]
    going = torch.bincount(ranks[away], minlength=n)
    matrix = [torch.empty_like(going) for _ in range(n)]
    dist.all_gather(matrix, going)
    coming = [int(row[rank]) for row in matrix]
    rows = x.new_empty(sum(coming), x.shape[1])
    dist.all_to_all_single(rows, x[away], coming, going.tolist())
    back = x.new_empty(len(away), x.shape[1])
    dist.all_to_all_single(back, expert(rows), going.tolist(), coming)
    results = torch.empty_like(x)
    results[here], results[away] = expert(x[here]), back
    return results
