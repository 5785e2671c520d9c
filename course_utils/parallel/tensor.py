"""The two autograd functions around a layer that is split over ranks.

M. Shoeybi and others, 2019, call them f and g:

    y = copy_to_ranks(x)     forward: nothing                  backward: the sum of the ranks' gradients
    y = sum_over_ranks(x)    forward: the sum of the ranks' x  backward: nothing

Between them goes a layer split by columns and the next one split by rows:
`sum_over_ranks(rows(relu(columns(copy_to_ranks(x)))))`.
"""

import torch
import torch.distributed as dist


def copy_to_ranks(x, group=None):
    """Return `x`, equal on all ranks of `group`, for a part that differs by rank; its gradient is summed over ranks."""
    return _CopyToRanks.apply(x, group)


def sum_over_ranks(x, group=None):
    """Return the sum of the ranks' `x` as a new tensor, equal on all ranks; the gradient passes through unchanged."""
    return _SumOverRanks.apply(x, group)


class _CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)  # autograd needs a tensor other than x

    @staticmethod
    def backward(ctx, gradient):
        return _sum(gradient, ctx.group), None


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return _sum(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def _sum(tensor, group):
    # A copy, since the caller keeps the tensor and autograd may pass the same gradient elsewhere.
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total
