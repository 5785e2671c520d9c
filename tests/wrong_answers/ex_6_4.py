# %%
import itertools

import numpy as np

# %% wrong (makes the cheapest stage cheap): is possible
# max(sum(costs[a:b]) for → min(sum(costs[a:b]) for
# %% wrong (squares): is possible
# max(sum(costs[a:b]) for → sum(sum(costs[a:b]) ** 2 for
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

# %% right (takes the last of the best, and refuses by what `max` raises for nothing at all)
def balance(costs, num_stages):
    cuts = [(0, *inner, len(costs)) for inner in itertools.combinations(range(1, len(costs)), num_stages - 1)]
    dearest = [max(np.sum(costs[a:b]) for a, b in itertools.pairwise(ends)) for ends in cuts]
    return list(np.diff(cuts[max(i for i, cost in enumerate(dearest) if cost <= min(dearest))]))

