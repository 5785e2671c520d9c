"""The autograd functions between which split layers stand, in real workers."""

import copy

import pytest
import torch
import torch.distributed as dist

from course_utils import WorkerError, launch
from course_utils.models import MLP
from course_utils.parallel.messages import Traffic
from course_utils.parallel.tensor import copy_to_ranks, gather_parts, sum_over_ranks, sum_parts


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


def halves_of_an_all_reduce(shape, dim):
    """What each function gives, the input's gradient, what was sent, and whether the given tensors are unchanged."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    results = []
    for function, times in ((gather_parts, 1), (sum_parts, world_size)):
        full = [n * times if i == dim % len(shape) else n for i, n in enumerate(shape)]
        out = [n * (world_size if times == 1 else 1) if i == dim % len(shape) else n for i, n in enumerate(shape)]
        x = torch.randn(full[::-1], generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
        x = x.permute(*reversed(range(len(shape)))).requires_grad_()  # transposed in memory
        pull = torch.randn(out, generator=torch.Generator().manual_seed(9 + rank), dtype=torch.float64)
        before = x.detach().clone(), pull.clone()
        with Traffic() as traffic:
            y = function(x, dim)
            y.backward(pull)
        is_unchanged = torch.equal(x, before[0]) and torch.equal(pull, before[1])
        results.append((x.detach(), pull, y.detach(), x.grad, traffic.collectives, is_unchanged))
    return results


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("shape, dim", [((2, 3, 4), 1), ((5, 2), 0), ((2, 3, 1), -1)])
def test_parts_are_gathered_one_way_and_summed_the_other(world_size, shape, dim):
    run = launch(halves_of_an_all_reduce, shape, dim, world_size=world_size, backend="gloo")
    for i in range(2):
        xs, pulls, ys, grads, sent, unchanged = zip(*(rank[i] for rank in run.results))
        whole, summed = (xs, pulls) if i == 0 else (pulls, xs)
        gathered, scattered = (ys, grads) if i == 0 else (grads, ys)
        for rank in range(world_size):
            torch.testing.assert_close(gathered[rank], torch.cat(whole, dim), rtol=0, atol=0)
            torch.testing.assert_close(
                scattered[rank], sum(summed).chunk(world_size, dim)[rank], rtol=1e-12, atol=1e-12
            )
        part = whole[0].nbytes
        assert all(sorted(n for _, n in each) == sorted([part, part * world_size]) for each in sent), "bytes filled"
        assert all(unchanged)


def norm_and_split_mlp():
    """Compare a LayerNorm on the rank's own tokens and an MLP split over ranks with one process."""
    torch.manual_seed(2)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    norm, mlp = torch.nn.LayerNorm(6).double(), MLP(6, 12).double()
    x, pull = torch.randn(2, 8, 6, dtype=torch.float64), torch.randn(2, 8, 6, dtype=torch.float64)
    whole_norm, whole_x = copy.deepcopy(norm), x.clone().requires_grad_()
    whole = whole_x + mlp(whole_norm(whole_x))
    whole.backward(pull)
    up, bias, down = (
        p.detach().chunk(world_size, dim)[rank].clone().requires_grad_()
        for p, dim in ((mlp.up.weight, 0), (mlp.up.bias, 0), (mlp.down.weight, 1))
    )
    own = x.chunk(world_size, 1)[rank].clone().requires_grad_()
    hidden = torch.relu(torch.nn.functional.linear(gather_parts(norm(own)), up, bias))
    y = own + sum_parts(hidden @ down.T)
    y.backward(pull.chunk(world_size, 1)[rank])
    for p in norm.parameters():
        dist.all_reduce(p.grad)
    ours = [y, own.grad, up.grad, bias.grad, down.grad, norm.weight.grad, norm.bias.grad]
    pieces = [whole, whole_x.grad, mlp.up.weight.grad, mlp.up.bias.grad, mlp.down.weight.grad]
    truth = [piece.chunk(world_size, dim)[rank] for piece, dim in zip(pieces, (1, 1, 0, 0, 1))]
    torch.testing.assert_close(ours, [*truth, whole_norm.weight.grad, whole_norm.bias.grad], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_split_mlp_with_a_divided_sequence_is_that_of_one_process(world_size):
    launch(norm_and_split_mlp, world_size=world_size, backend="gloo")


def test_a_sequence_that_the_ranks_do_not_divide_is_refused():
    with pytest.raises(WorkerError, match="ValueError: dimension 1 has length 5, which 2 ranks do not divide"):
        launch(lambda: sum_parts(torch.ones(1, 5, 2)), world_size=2, backend="gloo")
