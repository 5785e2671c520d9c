# %%
import itertools

import numpy as np

# %% wrong (makes the cheapest stage cheap): is possible
# max(sum(costs[a:b]) for → min(sum(costs[a:b]) for
# %% wrong (squares): is possible
# max(sum(costs[a:b]) for → sum(sum(costs[a:b]) ** 2 for
# %% wrong (rounds): its dearest stage costs
# max(sum(costs[a:b]) for → max(round(sum(costs[a:b]), 4) for
# %% wrong (sorts first): is possible
# num_layers = len(costs) → num_layers, costs = len(costs), sorted(costs, reverse=True)
# %% wrong (by number): is possible
# min(ways, key=dearest) → [num_layers * i // num_stages for i in range(num_stages + 1)]
# %% wrong (leaves stages empty): every stage needs a layer at least
# combinations(range(1, num_layers) → combinations_with_replacement(range(num_layers)
# %% wrong (returns the cost): the answer is 5, not a list or tuple of sizes
# return [b - a for a, b in itertools.pairwise(min(ways, key=dearest))] → return min(map(dearest, ways))
# %% wrong (returns the cuts): which are 1 stages
# return [b - a for a, b in itertools.pairwise(min(ways, key=dearest))] → return min(ways, key=dearest)[1:-1]
# %% wrong (returns the last indices): these are 7 layers, and there are 5
# [b - a for → [b for
# %% wrong (returns the layers): one is [3, 1], not a number
# [b - a for → [costs[a:b] for
# %% wrong (divides): one is 2.0, not a whole number
# [b - a for → [(b - a) / 1 for
# %% wrong (returns nothing): is it returned, or only printed?
# return [b - a → [b - a
# %% wrong (refuses as many): ValueError: 1 layers cannot be cut into 1 stages
# num_stages > num_layers → num_stages >= num_layers
# %% wrong (refuses with an assert): it raised AssertionError
# raise ValueError( → raise AssertionError(
# %% wrong (returns the error): and a ValueError should be raised
# raise ValueError( → return ValueError(
# %% wrong (takes fewer stages): and a ValueError should be raised
# if num_stages > num_layers: → num_stages = min(num_stages, num_layers)
#         raise ValueError →     print
# %% wrong (uses the list up): costs holds other items
# -     return [b - a for a, b in itertools.pairwise(min(ways, key=dearest))]
# +     sizes = list(np.diff(min(ways, key=dearest)))
# +     costs.clear()
# +     return sizes

# %% right (works from the end)
def balance(costs, num_stages):
    if num_stages > len(costs):
        raise ValueError("a stage needs a layer")
    table = {(0, n): (sum(costs[:n]), (n,)) for n in range(1, len(costs) + 1)}
    for k in range(1, num_stages):
        for n in range(k + 1, len(costs) + 1):
            ways = ((max(table[k - 1, i][0], sum(costs[i:n])), (*table[k - 1, i][1], n - i)) for i in range(k, n))
            table[k, n] = min(ways)
    return table[num_stages - 1, len(costs)][1]

# %% right (raises the limit)
def balance(costs, num_stages):
    if num_stages > len(costs):
        raise ValueError(f"{len(costs)} layers for {num_stages} stages")
    for limit in sorted(sum(costs[i:j]) for i in range(len(costs)) for j in range(i + 1, len(costs) + 1)):
        sizes, total = [0], 0
        for i, cost in enumerate(costs):
            must = len(costs) - i == num_stages - len(sizes)
            if sizes[-1] and (total + cost > limit + 1e-12 or must):
                sizes.append(0)
                total = 0
            sizes[-1] += 1
            total += cost
            if total > limit + 1e-12:
                break
        else:
            if len(sizes) == num_stages:
                return sizes

# %% right (takes the last of the best, and refuses by what `max` raises for nothing at all)
def balance(costs, num_stages):
    cuts = [(0, *inner, len(costs)) for inner in itertools.combinations(range(1, len(costs)), num_stages - 1)]
    dearest = [max(np.sum(costs[a:b]) for a, b in itertools.pairwise(ends)) for ends in cuts]
    return list(np.diff(cuts[max(i for i, cost in enumerate(dearest) if cost <= min(dearest))]))

# %% wrong (fills to the average): is possible
def balance(costs, num_stages):
    if num_stages > len(costs):
        raise ValueError
    average, sizes = sum(costs) / num_stages, [1]
    for i, cost in enumerate(costs[1:], 1):
        full = sum(costs[i - sizes[-1] : i]) + cost > average and len(sizes) < num_stages
        if full or len(costs) - i == num_stages - len(sizes):
            sizes.append(0)
        sizes[-1] += 1
    return sizes

# %% wrong (halves the dearest): is possible
def balance(costs, num_stages):
    stages = [list(costs)]
    while len(stages) < num_stages:
        i = max((i for i in range(len(stages)) if len(stages[i]) > 1), key=lambda i: sum(stages[i]))
        cut = min(range(1, len(stages[i])), key=lambda c: max(sum(stages[i][:c]), sum(stages[i][c:])))
        stages[i : i + 1] = [stages[i][:cut], stages[i][cut:]]
    return [len(stage) for stage in stages]

# %% wrong (cuts stage by stage): is possible
def balance(costs, num_stages):
    if num_stages == 1:
        return [len(costs)]
    sizes = range(1, len(costs) - num_stages + 2)
    first = min(sizes, key=lambda n: max(sum(costs[:n]), sum(costs[n:]) / (num_stages - 1)))
    return [first, *balance(costs[first:], num_stages - 1)]

# %% wrong (moves a layer while it helps): is possible
def balance(costs, num_stages):
    def dearest(sizes):
        ends = np.cumsum(sizes)
        return max(sum(costs[end - size : end]) for end, size in zip(ends, sizes))

    sizes = [len(part) for part in np.array_split(costs, num_stages)]
    while True:
        moves = [(i, by) for i in range(num_stages - 1) for by in (1, -1)]
        others = [[*sizes[:i], sizes[i] + by, sizes[i + 1] - by, *sizes[i + 2 :]] for i, by in moves]
        better = min((other for other in others if min(other) > 0), key=dearest, default=sizes)
        if dearest(better) >= dearest(sizes):
            return sizes
        sizes = better
