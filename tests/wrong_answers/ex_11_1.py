"""Exercise 11.1: answers that its check must refuse, each with words from the reason that it must give."""

import itertools
import math
import statistics

import numpy as np
import torch


def first_beyond(table, error, times=2):
    sizes = sorted(table)
    base = table[sizes[0]]
    for size in sizes[1:]:
        if table[size][0] - base[0] > times * error(table[size], base):
            return size


def standard_error(a, b):
    return math.sqrt(a[1] ** 2 / a[2] + b[1] ** 2 / b[2])


def takes_any_larger_error(table):
    return first_beyond(table, lambda a, b: 0)


def takes_one_standard_error(table):
    return first_beyond(table, standard_error, times=1)


def takes_the_spread(table):
    return first_beyond(table, lambda a, b: math.sqrt(a[1] ** 2 + b[1] ** 2))


def adds_standard_errors(table):
    return first_beyond(table, lambda a, b: a[1] / math.sqrt(a[2]) + b[1] / math.sqrt(b[2]))


def forgets_the_bases_error(table):
    return first_beyond(table, lambda a, b: a[1] / a[2] ** 0.5)


def divides_by_the_runs(table):
    return first_beyond(table, lambda a, b: math.hypot(a[1] / a[2], b[1] / b[2]))


def forgets_the_squares(table):
    return first_beyond(table, lambda a, b: math.sqrt(a[1] / a[2] + b[1] / b[2]))


def counts_better_ones(table):
    sizes = sorted(table)
    base = table[sizes[0]]
    for size in sizes[1:]:
        if abs(table[size][0] - base[0]) > 2 * standard_error(table[size], base):
            return size


def goes_in_the_dicts_order(table):
    base = table[min(table)]
    for size, row in table.items():
        if row[0] - base[0] > 2 * standard_error(row, base):
            return size


def takes_the_one_before(table):
    sizes = sorted(table)
    for before, size in itertools.pairwise(sizes):
        if table[size][0] - table[before][0] > 2 * standard_error(table[size], table[before]):
            return size


def comes_from_above(table):
    return max((s for s in table if table[s][0] - table[min(table)][0] > 2 * standard_error(table[s], table[min(table)])), default=None)


def returns_zero_for_none(table):
    return first_beyond(table, standard_error) or 0


def returns_the_error(table):
    size = first_beyond(table, standard_error)
    return size and table[size]


def empties_the_table(table):
    base_size = min(table)
    base = table.pop(base_size)
    return next((s for s in sorted(table) if table[s][0] - base[0] > 2 * standard_error(table[s], base)), None)


def looks_for_the_worst(table):
    worst = max(table, key=lambda size: table[size][0])
    return worst if table[worst][0] - table[min(table)][0] > 2 * standard_error(table[worst], table[min(table)]) else None


def takes_1_96(table):
    return first_beyond(table, standard_error, times=1.96)


def takes_three(table):
    return first_beyond(table, standard_error, times=3)


def takes_one_from_the_runs(table):
    return first_beyond(table, lambda a, b: math.sqrt(a[1] ** 2 / (a[2] - 1) + b[1] ** 2 / (b[2] - 1)))


def pools_the_spreads(table):
    def pooled(a, b):
        variance = ((a[2] - 1) * a[1] ** 2 + (b[2] - 1) * b[1] ** 2) / (a[2] + b[2] - 2)
        return math.sqrt(variance) * math.sqrt(1 / a[2] + 1 / b[2])

    return first_beyond(table, pooled)


def asks_whether_bars_overlap(table):
    sizes = sorted(table)
    low = {size: table[size][0] - table[size][1] / math.sqrt(table[size][2]) for size in sizes}
    mean, spread, runs = table[sizes[0]]
    return next((size for size in sizes[1:] if low[size] > mean + spread / math.sqrt(runs)), None)


def sorts_the_table(table):
    rows = sorted(table.items())
    table.clear()
    table.update(rows)
    return first_beyond(table, standard_error)


def starts_from_the_best(table):
    best = min(table.values())
    return next((size for size in sorted(table) if table[size][0] - best[0] > 2 * standard_error(table[size], best)), None)


def returns_the_last_good_one(table):
    size = first_beyond(table, standard_error)
    return size and max(other for other in table if other < size)


def finds_always_one(table):
    base = table[min(table)]
    found = [size for size in sorted(table) if table[size][0] - base[0] > 2 * standard_error(table[size], base)]
    return found[0]



WRONG = [
    (takes_any_larger_error, "calls every larger error a break"),
    (takes_one_standard_error, "that is one standard error"),
    (takes_the_spread, "the spread of single runs"),
    (adds_standard_errors, "two standard errors are added"),
    (forgets_the_bases_error, "the smallest batch's mean has a standard error as well"),
    (divides_by_the_runs, "divided by the number of runs"),
    (forgets_the_squares, "the formula has squares"),
    (counts_better_ones, "better than the smallest is no break"),
    (goes_in_the_dicts_order, "in no particular order"),
    (takes_the_one_before, "held against the one before it"),
    (comes_from_above, "the first is asked for"),
    (returns_zero_for_none, "neither None nor a batch size"),
    (returns_the_error, "neither None nor a batch size"),
    (empties_the_table, "changed the table"),
    (looks_for_the_worst, "compute by hand"),
    (takes_1_96, "that is 1.96 standard errors"),
    (takes_three, "compute by hand"),
    (takes_one_from_the_runs, "one is taken from the numbers of runs"),
    (pools_the_spreads, "one spread is made of both"),
    (asks_whether_bars_overlap, "compute by hand"),
    (sorts_the_table, "changed the table"),
    (starts_from_the_best, "compute by hand"),
    (returns_the_last_good_one, "compute by hand"),
    (finds_always_one, "IndexError"),
]


def with_numpy(table):
    sizes = np.array(sorted(table))
    mean, spread, runs = np.array([table[size] for size in sizes]).T
    variance = spread**2 / runs
    is_worse = (mean - mean[0]) / np.sqrt(variance + variance[0]) > 2
    return sizes[is_worse.argmax()] if is_worse.any() else None


def with_a_distribution(table):
    first, *others = sorted(table)
    (m0, s0, k0) = table[first]
    for size in others:
        m, s, k = table[size]
        gap = statistics.NormalDist(m, s / k**0.5) - statistics.NormalDist(m0, s0 / k0**0.5)
        if gap.mean > 2 * gap.stdev:
            return size


def with_a_tensor(table):
    sizes = torch.tensor(sorted(table))
    mean, spread, runs = torch.tensor([table[size] for size in sorted(table)], dtype=torch.float64).T
    variance = spread.square() / runs
    worse = sizes[mean - mean[0] > 2 * (variance + variance[0]).sqrt()]
    return worse[0] if len(worse) else None



RIGHT = [with_numpy, with_a_distribution, with_a_tensor]
