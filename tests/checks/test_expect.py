import math

import pytest
import torch

from course_utils.checks.expect import max_difference, same

INF = math.inf
ROW = torch.tensor([1.0, 2000.0, -INF])


@pytest.mark.parametrize(
    "a, b",
    [
        (ROW, ROW.clone()),
        (ROW, torch.tensor([1.0, 2000.0 * (1 + 1e-12), -INF], dtype=torch.float64)),
        (torch.tensor([1, 2]), torch.tensor([1, 2])),
        (torch.tensor([True]), torch.tensor([True])),
        (torch.tensor([]), torch.tensor([])),
        (torch.tensor(-INF), torch.tensor(-INF)),
        (INF, INF),
        ([1.0, (ROW,)], [1.0, [ROW]]),
    ],
)
def test_the_same(a, b):
    assert same(a, b)


@pytest.mark.parametrize(
    "a, b",
    [
        (torch.tensor([5.0, 2000.0, -INF]), ROW),
        (torch.tensor([1.0, 2000.0, INF]), ROW),
        (torch.tensor([1.0, 2000.0, 3.0]), ROW),
        (torch.tensor([1.0, INF, -INF]), ROW),
        (torch.tensor([1.0, math.nan, -INF]), ROW),
        (torch.tensor([1.0, 2000.0]), ROW),
        (torch.tensor(5.0), torch.tensor(INF)),
        (5.0, INF),
        (-INF, INF),
        (math.nan, math.nan),
        (torch.tensor([1, 3]), torch.tensor([1, 2])),
        ([ROW], [ROW, ROW]),
    ],
)
def test_not_the_same(a, b):
    assert not same(a, b)


def test_the_largest_difference_knows_infinities():
    assert max_difference(ROW, ROW.clone()) == 0
    assert max_difference([ROW, ROW], [ROW, torch.tensor([1.0, 1999.0, -INF])]) == 1
    assert max_difference(ROW, torch.tensor([1.0, 2000.0, 0.0])) == INF
