# %% wrong (in order): which rank should get the next chunk
# return shares → return [list(range(r * (num_chunks // num_ranks), (r + 1) * (num_chunks // num_ranks))) for r in range(num_ranks)]
# %% wrong (takes the sequence for one document): it would be equal if all tokens were one document
# torch.cat([torch.arange(1, n + 1) for n in lengths]) → torch.arange(1, sum(lengths) + 1)
# %% wrong (deals round after round): in each round of dealing the first rank gets the largest chunk
# rank = min(open_ranks, key=lambda r: load[r]) → rank = sum(map(len, shares)) % num_ranks
# %% wrong (gives the smallest first): which rank should get the next chunk, if the largest are given out first?
# key=lambda chunk: -work[chunk] → key=lambda chunk: work[chunk]
# %% wrong (by work alone): and must have equally many
# if len(shares[r]) < num_chunks // num_ranks → if True
# %% wrong (forgets the last chunk): nobody has chunk
# return shares → return [share[:-1] for share in shares]
# %% wrong (gives one twice): chunk [0] is given out
# return shares → return [[0, *share[1:]] for share in shares]
# %% wrong (counts from 1): chunks are numbered from 0 to 31
# shares[rank].append(chunk) → shares[rank].append(chunk + 1)
# %% wrong (gives work instead of numbers): a number in rank 0's row is
# return shares → return [[work[c] / 2 for c in share] for share in shares]
# %% wrong (returns the rank of each chunk): holds 32 items, not 4
# return shares → return [next(r for r in range(num_ranks) if chunk in shares[r]) for chunk in range(num_chunks)]
# %% wrong (changes the lengths): lengths
# shares, load = → lengths.sort(); shares, load =
# %% right (a snake)
def share_out(lengths, num_chunks, num_ranks):
    seen = [own + 1 for n in lengths for own in range(n)]
    size = len(seen) // num_chunks
    order = sorted(range(num_chunks), key=lambda c: sum(seen[c * size : (c + 1) * size]))
    rows = [order[i : i + num_ranks] for i in range(0, num_chunks, num_ranks)]
    rows = [row[::-1] if i % 2 else row for i, row in enumerate(rows)]
    return [list(column) for column in zip(*rows)]
# %% right (a tensor, sorted)
def share_out(lengths, num_chunks, num_ranks):
    seen = torch.cat([torch.arange(n) + 1 for n in lengths])
    order = seen.reshape(num_chunks, -1).sum(1).argsort(descending=True).view(-1, num_ranks)
    order[1::2] = order[1::2].flip(1)
    return order.T.sort(1).values
# %% right (tuples of tensors' elements, by a heap)
import heapq


def share_out(lengths, num_chunks, num_ranks):
    work = torch.cat([torch.arange(1, n + 1) for n in lengths]).double().view(num_chunks, -1).sum(1)
    shares, heap = [() for _ in range(num_ranks)], [(0.0, r) for r in range(num_ranks)]
    for chunk in work.argsort(descending=True):
        load, rank = heapq.heappop(heap)
        shares[rank] += (chunk,)
        if len(shares[rank]) < num_chunks // num_ranks:
            heapq.heappush(heap, (load + work[chunk].item(), rank))
    return tuple(shares)
# %% right (by exchanging until it is equal, sets)
def share_out(lengths, num_chunks, num_ranks):
    import itertools

    seen = [i + 1 for n in lengths for i in range(n)]
    size, each = len(seen) // num_chunks, num_chunks // num_ranks
    work = [sum(seen[c * size : (c + 1) * size]) for c in range(num_chunks)]
    shares = [set(range(r * each, (r + 1) * each)) for r in range(num_ranks)]
    for _ in range(500):
        loads = [sum(work[c] for c in share) for share in shares]
        high = loads.index(max(loads))
        others = [r for r in range(num_ranks) if r != high]
        after = {
            (a, b, r): max(loads[high] - work[a] + work[b], loads[r] + work[a] - work[b])
            for r in others
            for a, b in itertools.product(shares[high], shares[r])
        }
        best = min(after, key=after.get, default=None)
        if best is None or after[best] >= loads[high]:
            break
        a, b, r = best
        shares[high] ^= {a, b}
        shares[r] ^= {a, b}
    return shares
