"""The rank test of chapter 11, exact."""

from collections.abc import Sequence
from math import comb


def rank_test(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the two-sided p-value of the rank-sum test: how often chance puts the ranks of `ours` so far apart.

    It counts all ways to draw as many values as `ours` from both groups together; equal values share the mean of their
    ranks. Raises ValueError if a group is empty. Source: Wilcoxon, 1945, and Mann and Whitney, 1947.
    """
    if not ours or not theirs:
        raise ValueError(f"the groups have {len(ours)} and {len(theirs)} values; each needs one at least")
    both = [*ours, *theirs]
    # Twice the rank, so that shared ranks are whole numbers.
    ranks = [2 * sum(other < value for other in both) + sum(other == value for other in both) + 1 for value in both]
    ways = [{0: 1}, *({} for _ in ours)]  # ways[n][s]: the number of ways to draw n values whose ranks add up to s
    for rank in ranks:
        for drawn in range(len(ours), 0, -1):
            for total, number in ways[drawn - 1].items():
                ways[drawn][total + rank] = ways[drawn].get(total + rank, 0) + number
    centre = len(ours) * sum(ranks) / len(both)
    distance = abs(sum(ranks[: len(ours)]) - centre)
    far = sum(number for total, number in ways[-1].items() if abs(total - centre) >= distance - 1e-9)
    return far / comb(len(both), len(ours))
