"""Exercise 6.4: answers that its check must refuse, each with words from the reason that it must give."""

import itertools

import numpy as np


def refuse(costs, num_stages):
    if num_stages > len(costs):
        raise ValueError("more stages than layers")


def by_number(costs, num_stages):
    refuse(costs, num_stages)
    each, more = divmod(len(costs), num_stages)
    return [each + (i < more) for i in range(num_stages)]


def fills_to_the_average(costs, num_stages):
    refuse(costs, num_stages)
    average, sizes = sum(costs) / num_stages, [1]
    for i, cost in enumerate(costs[1:], 1):
        size = sizes[-1]
        left = len(costs) - i
        full = sum(costs[i - size : i]) + cost > average and len(sizes) < num_stages
        if full or left == num_stages - len(sizes):
            sizes.append(1)
        else:
            sizes[-1] += 1
    return sizes


def halves_the_dearest(costs, num_stages):
    refuse(costs, num_stages)
    stages = [list(costs)]
    while len(stages) < num_stages:
        i = max((i for i in range(len(stages)) if len(stages[i]) > 1), key=lambda i: sum(stages[i]))
        cut = min(range(1, len(stages[i])), key=lambda c: max(sum(stages[i][:c]), sum(stages[i][c:])))
        stages[i : i + 1] = [stages[i][:cut], stages[i][cut:]]
    return [len(stage) for stage in stages]


def ways(costs, num_stages):
    for inner in itertools.combinations(range(1, len(costs)), num_stages - 1):
        ends = (0, *inner, len(costs))
        yield [b - a for a, b in itertools.pairwise(ends)]


def stage_costs(costs, sizes):
    ends = list(itertools.accumulate(sizes))
    return [sum(costs[end - size : end]) for size, end in zip(sizes, ends)]


def makes_the_cheapest_dear(costs, num_stages):
    refuse(costs, num_stages)
    return max(ways(costs, num_stages), key=lambda sizes: min(stage_costs(costs, sizes)))


def squares(costs, num_stages):
    refuse(costs, num_stages)
    return min(ways(costs, num_stages), key=lambda sizes: sum(cost**2 for cost in stage_costs(costs, sizes)))


def leaves_stages_empty(costs, num_stages):
    refuse(costs, num_stages)
    every = itertools.combinations_with_replacement(range(len(costs) + 1), num_stages - 1)
    cut = [(0, *inner, len(costs)) for inner in every]
    best = min(cut, key=lambda ends: max(sum(costs[a:b]) for a, b in itertools.pairwise(ends)))
    return [b - a for a, b in itertools.pairwise(best)]


def best(costs, num_stages):
    return min(ways(costs, num_stages), key=lambda sizes: max(stage_costs(costs, sizes)))


def returns_the_cuts(costs, num_stages):
    refuse(costs, num_stages)
    return list(itertools.accumulate(best(costs, num_stages)))[:-1]


def returns_the_layers(costs, num_stages):
    refuse(costs, num_stages)
    ends = list(itertools.accumulate(best(costs, num_stages)))
    return [list(costs[a:b]) for a, b in zip([0, *ends], ends)]


def returns_the_cost(costs, num_stages):
    refuse(costs, num_stages)
    return max(stage_costs(costs, best(costs, num_stages)))


def returns_the_last_indices(costs, num_stages):
    refuse(costs, num_stages)
    return list(itertools.accumulate(best(costs, num_stages)))


def refuses_with_an_assert(costs, num_stages):
    assert num_stages <= len(costs)
    return best(costs, num_stages)


def takes_fewer_stages(costs, num_stages):
    return best(costs, min(num_stages, len(costs)))


def uses_the_list_up(costs, num_stages):
    refuse(costs, num_stages)
    answer = best(costs, num_stages)
    costs.clear()
    return answer


def sorts_first(costs, num_stages):
    refuse(costs, num_stages)
    return best(sorted(costs, reverse=True), num_stages)


def fills_to_the_nearest(costs, num_stages):
    refuse(costs, num_stages)
    rest, sizes = list(costs), []
    for k in range(num_stages, 1, -1):
        share, n = sum(rest) / k, 1
        while n < len(rest) - k + 1 and abs(sum(rest[: n + 1]) - share) <= abs(sum(rest[:n]) - share):
            n += 1
        sizes.append(n)
        rest = rest[n:]
    return [*sizes, len(rest)]


def cuts_stage_by_stage(costs, num_stages):
    refuse(costs, num_stages)
    if num_stages == 1:
        return [len(costs)]
    sizes = range(1, len(costs) - num_stages + 2)
    first = min(sizes, key=lambda n: max(sum(costs[:n]), sum(costs[n:]) / (num_stages - 1)))
    return [first, *cuts_stage_by_stage(costs[first:], num_stages - 1)]


def moves_a_layer_while_it_helps(costs, num_stages):
    sizes = by_number(costs, num_stages)
    while True:
        others = []
        for i in range(num_stages - 1):
            for by in (1, -1):
                other = [*sizes[:i], sizes[i] + by, sizes[i + 1] - by, *sizes[i + 2 :]]
                others += [other] * (min(other) > 0)
        better = min(others, key=lambda other: max(stage_costs(costs, other)), default=sizes)
        if max(stage_costs(costs, better)) >= max(stage_costs(costs, sizes)):
            return sizes
        sizes = better


def evens_out(costs, num_stages):
    refuse(costs, num_stages)
    return min(ways(costs, num_stages), key=lambda s: max(stage_costs(costs, s)) - min(stage_costs(costs, s)))


def rounds_the_costs(costs, num_stages):
    refuse(costs, num_stages)
    return best([round(cost) for cost in costs], num_stages)


def refuses_as_many(costs, num_stages):
    if num_stages >= len(costs):
        raise ValueError("too many stages")
    return best(costs, num_stages)


def returns_the_error(costs, num_stages):
    return best(costs, num_stages) if num_stages <= len(costs) else ValueError("too many stages")


def fills_up_with_empty_stages(costs, num_stages):
    sizes = best(costs, min(num_stages, len(costs)))
    return sizes + [0] * (num_stages - len(sizes))


WRONG = [
    (by_number, "is possible"),
    (fills_to_the_average, "is possible"),
    (halves_the_dearest, "is possible"),
    (makes_the_cheapest_dear, "is possible"),
    (squares, "is possible"),
    (sorts_first, "is possible"),
    (leaves_stages_empty, "every stage needs a layer at least"),
    (returns_the_cuts, "which are 1 stages"),
    (returns_the_layers, "not a list of whole numbers"),
    (returns_the_cost, "not a list of whole numbers"),
    (returns_the_last_indices, "these are 7 layers, and there are 5"),
    (refuses_with_an_assert, "AssertionError was raised"),
    (takes_fewer_stages, "a ValueError should be raised"),
    (fills_to_the_nearest, "is possible"),
    (cuts_stage_by_stage, "is possible"),
    (moves_a_layer_while_it_helps, "is possible"),
    (evens_out, "is possible"),
    (rounds_the_costs, "is possible"),
    (refuses_as_many, "ValueError: too many stages"),
    (returns_the_error, "a ValueError should be raised"),
    (fills_up_with_empty_stages, "a ValueError should be raised"),
    (uses_the_list_up, "the list of costs was changed"),
]


def works_from_the_end(costs, num_stages):
    if num_stages > len(costs):
        raise ValueError("a stage needs a layer")
    table = {(0, n): (sum(costs[:n]), (n,)) for n in range(1, len(costs) + 1)}
    for k in range(1, num_stages):
        for n in range(k + 1, len(costs) + 1):
            table[k, n] = min(
                (max(table[k - 1, i][0], sum(costs[i:n])), (*table[k - 1, i][1], n - i)) for i in range(k, n)
            )
    return table[num_stages - 1, len(costs)][1]


def raises_the_limit(costs, num_stages):
    if num_stages > len(costs):
        raise ValueError(f"{len(costs)} layers for {num_stages} stages")
    runs = sorted({sum(costs[i:j]) for i in range(len(costs)) for j in range(i + 1, len(costs) + 1)})
    for limit in runs:
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


def takes_the_last_of_the_best(costs, num_stages):
    """Refuses by what `min` raises for nothing at all."""
    cuts = [(0, *inner, len(costs)) for inner in itertools.combinations(range(1, len(costs)), num_stages - 1)]
    dearest = [max(np.sum(costs[a:b]) for a, b in itertools.pairwise(ends)) for ends in cuts]
    return list(np.diff(cuts[max(i for i, cost in enumerate(dearest) if cost <= min(dearest))]))


RIGHT = [works_from_the_end, raises_the_limit, takes_the_last_of_the_best]
