"""Layers that are split over ranks: the two autograd functions between which they stand.

M. Shoeybi and others, 2019, call them f and g; what each does in its two directions:

    y = copy_to_ranks(x)     forward: nothing                  backward: the sum of the ranks' gradients
    y = sum_over_ranks(x)    forward: the sum of the ranks' x  backward: nothing

A part with columns of a layer, and then rows of the next, goes between them:
`sum_over_ranks(rows(relu(columns(copy_to_ranks(x)))))`.
"""

import torch
import torch.distributed as dist


def copy_to_ranks(x, group=None):
    """Return `x`, equal on all ranks of `group`, for a part that differs from rank to rank;
    its gradient is their sum.
    """
    return _CopyToRanks.apply(x, group)


def sum_over_ranks(x, group=None):
    """Return the sum of the ranks' `x` as a new tensor, equal on all; each rank's gradient is the sum's own."""
    return _SumOverRanks.apply(x, group)


class _CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)  # a new tensor: autograd wants to tell it from x

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
    # A copy: the caller still has the tensor, and autograd may hand the same gradient to others too.
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total
