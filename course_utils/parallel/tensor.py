"""The autograd functions around a layer that is split over ranks.

M. Shoeybi and others, 2019, call them f and g:

    y = copy_to_ranks(x)     forward: nothing                  backward: the sum of the ranks' gradients
    y = sum_over_ranks(x)    forward: the sum of the ranks' x  backward: nothing

Between them goes a layer split by columns and the next one split by rows:
`sum_over_ranks(rows(relu(columns(copy_to_ranks(x)))))`.

With sequence parallelism (V. Korthikanti and others, 2022, arXiv 2205.05198) a rank has only its own tokens outside
these layers. An all-gather and a reduce-scatter, each half an all-reduce, take the place of the sums:

    y = gather_parts(x)      forward: all ranks' tokens        backward: the sum of the ranks' gradients, own tokens
    y = sum_parts(x)         forward: the sum, own tokens      backward: all ranks' gradients

`sum_parts(rows(relu(columns(gather_parts(x)))))`. The gradients of parameters outside, as of a LayerNorm, are then of
the rank's own tokens: they are summed over the ranks.
"""

import torch
import torch.distributed as dist


def copy_to_ranks(x, group=None):
    """Return `x`, equal on all ranks of `group`, for a part that differs by rank; its gradient is summed over ranks."""
    return _CopyToRanks.apply(x, group)


def sum_over_ranks(x, group=None):
    """Return the sum of the ranks' `x` as a new tensor, equal on all ranks; the gradient passes through unchanged."""
    return _SumOverRanks.apply(x, group)


def gather_parts(x, dim=1, group=None):
    """Return the ranks' parts of a tensor, (b, s / N, d) by default, joined along `dim`; equally long on all ranks."""
    return _GatherParts.apply(x, dim, group)


def sum_parts(x, dim=1, group=None):
    """Return this rank's part along `dim` of the sum of the ranks' `x`: of (b, s, d) by default (b, s / N, d).

    Raises ValueError if the ranks do not divide that length.
    """
    world_size = dist.get_world_size(group)
    if x.shape[dim] % world_size:
        raise ValueError(f"dimension {dim} has length {x.shape[dim]}, which {world_size} ranks do not divide")
    return _SumParts.apply(x, dim, group)


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


class _GatherParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, group):
        ctx.dim, ctx.group = dim, group
        return _gather(x, dim, group)

    @staticmethod
    def backward(ctx, gradient):
        return _reduce_scatter(gradient, ctx.dim, ctx.group), None, None


class _SumParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, group):
        ctx.dim, ctx.group = dim, group
        return _reduce_scatter(x, dim, group)

    @staticmethod
    def backward(ctx, gradient):
        return _gather(gradient, ctx.dim, ctx.group), None, None


def _gather(part, dim, group):
    parts = part.new_empty(dist.get_world_size(group), *part.shape)
    dist.all_gather_into_tensor(parts.view(-1), part.detach().contiguous().view(-1), group=group)
    return torch.cat(list(parts), dim)


def _reduce_scatter(tensor, dim, group):
    parts = torch.stack(tensor.detach().chunk(dist.get_world_size(group), dim))  # one behind the other in memory
    own = parts.new_empty(parts.shape[1:])
    dist.reduce_scatter_tensor(own.view(-1), parts.view(-1), group=group)
    return own


def _sum(tensor, group):
    # A copy, since the caller keeps the tensor and autograd may pass the same gradient elsewhere.
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total
