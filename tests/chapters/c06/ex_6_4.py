# %%
import itertools

import numpy as np

# %% wrong (makes the cheapest stage cheap): is possible
# max(sum(costs[a:b]) for → min(sum(costs[a:b]) for
# %% wrong (squares): is possible
# max(sum(costs[a:b]) for → sum(sum(costs[a:b]) ** 2 for
# %% wrong (leaves stages empty): every stage needs a layer at least
# combinations(range(1, num_layers) → combinations_with_replacement(range(num_layers)
# %% wrong (returns the last indices): these are 7 layers, and there are 5
# [b - a for → [b for
# %% wrong (returns the layers): one is [3, 1], not a number
# [b - a for → [costs[a:b] for
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

