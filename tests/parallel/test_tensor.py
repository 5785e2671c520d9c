"""The pair of autograd functions between which split layers stand, in real workers."""

import pytest
import torch
import torch.distributed as dist

from course_utils import launch
from course_utils.parallel.messages import Traffic
from course_utils.parallel.tensor import copy_to_ranks, sum_over_ranks


def own(rank, seed):
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * seed + rank), dtype=torch.float64)


def run_both(ranks=None):
    """Return for each function its result, the input's gradient, and whether input and gradient were left unchanged."""
    rank, group = dist.get_rank(), None if ranks is None else dist.new_group(ranks)
    if ranks is not None and rank not in ranks:
        return None
    results, pull = [], own(rank, 2).expand(2, 3, 4)  # a gradient that is a view, as that of a sum is
    for function in (copy_to_ranks, sum_over_ranks):
        x = own(rank, 1).expand(2, 3, 4).clone().requires_grad_()
        with Traffic() as traffic:
            y = function(x, group)
            y.backward(pull)
        untouched = torch.equal(x[0], own(rank, 1)) and torch.equal(pull[1], own(rank, 2))
        results.append((y.detach()[1], x.grad[1], untouched, len(traffic.collectives)))
    return results


@pytest.mark.parametrize("ranks", [None, [0, 2]])
def test_one_direction_sums_and_the_other_hands_on(ranks):
    run = launch(run_both, ranks, world_size=3, backend="gloo")
    there = [0, 1, 2] if ranks is None else ranks
    sums = [sum(own(rank, seed) for rank in there) for seed in (1, 2)]
    for rank in there:
        (copied, copied_grad, *rest), (total, total_grad, *rest_of_sum) = run[rank]
        torch.testing.assert_close([copied, total_grad], [own(rank, 1), own(rank, 2)], rtol=0, atol=0)
        torch.testing.assert_close([copied_grad, total], sums[::-1], rtol=1e-12, atol=1e-12)
        assert rest == rest_of_sum == [True, 1], "one collective each, and what was given is as it was"


def add_a_branch():
    x = torch.ones(2, requires_grad=True)
    (x + copy_to_ranks(x)).backward(torch.tensor([1.0, 2.0]))  # autograd hands one gradient to both summands
    return x.grad


def test_a_gradient_that_goes_two_ways_is_right_on_both():
    for gradient in launch(add_a_branch, world_size=2, backend="gloo"):
        torch.testing.assert_close(gradient, torch.tensor([3.0, 6.0]))
