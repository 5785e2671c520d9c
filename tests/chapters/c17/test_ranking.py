"""Chapter 17's rank test against all draws, written out."""

import itertools

import pytest

from course_utils.chapters.c17_experts.ranking import rank_test


def by_all_draws(ours, theirs):
    both = ours + theirs
    ranks = [sum(other < value for other in both) + (sum(other == value for other in both) + 1) / 2 for value in both]
    sums = [sum(drawn) for drawn in itertools.combinations(ranks, len(ours))]
    centre, found = sum(sums) / len(sums), sum(ranks[: len(ours)])
    return sum(abs(each - centre) >= abs(found - centre) - 1e-9 for each in sums) / len(sums)


@pytest.mark.parametrize(
    "ours, theirs",
    [
        ([1, 2, 3], [4, 5, 6]),
        ([1, 5, 3, 8], [4, 2, 6]),
        ([1, 1, 2], [1, 2, 2, 3]),
        ([0.5], [0.25, 0.75]),
        ([7, 7], [7, 7]),
    ],
)
def test_it_counts_all_draws(ours, theirs):
    assert rank_test(ours, theirs) == pytest.approx(by_all_draws(ours, theirs))
    assert rank_test(theirs, ours) == pytest.approx(rank_test(ours, theirs))


def test_ten_against_ten_that_do_not_overlap_are_two_draws_of_184_756():
    assert rank_test(list(range(10)), list(range(10, 20))) == pytest.approx(2 / 184_756)


def test_an_empty_group_is_refused():
    with pytest.raises(ValueError, match="0 and 2 values"):
        rank_test([], [1, 2])
