"""Exercise 12.1: answers that its check must refuse, each with words from the reason that it must give."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional


def summed(tensor):
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


def same(tensor):
    return tensor.view_as(tensor)


def in_place(tensor):
    dist.all_reduce(tensor)
    return tensor


def mean(tensor):
    return summed(tensor) / dist.get_world_size()


def doubled(tensor):
    return 2 * tensor


def pair_of(copy_forward, copy_backward, sum_forward, sum_backward):
    def make(forward_of, backward_of):
        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return forward_of(x)

            @staticmethod
            def backward(ctx, gradient):
                return backward_of(gradient)

        return Function.apply

    return make(copy_forward, copy_backward), make(sum_forward, sum_backward)


def exchanges_them():
    return pair_of(same, summed, summed, same)[::-1]


def sums_nothing_backward():
    return pair_of(same, same, summed, same)


def sums_both_ways():
    return pair_of(same, summed, summed, summed)


def sums_in_place():
    return pair_of(same, summed, in_place, same)


def sums_the_gradient_in_place():
    return pair_of(same, in_place, summed, same)


def averages_backward():
    return pair_of(same, mean, summed, same)


def averages_forward():
    return pair_of(same, summed, mean, same)


def scales_the_gradient():
    return pair_of(same, summed, summed, doubled)


def works_without_autograd():
    return same, summed


def loses_the_graph():
    return (lambda x: x.detach()), (lambda x: summed(x))


def takes_the_libraries_sum():
    def sum_over_ranks(x):
        return torch.distributed.nn.functional.all_reduce(x)

    return pair_of(same, summed, summed, same)[0], sum_over_ranks


def returns_the_classes():
    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return same(x)

    return Copy


def gives_no_gradient():
    return pair_of(same, lambda gradient: None, summed, same)


def copies_from_rank_0():
    def backward(gradient):
        total = gradient.clone()
        dist.broadcast(total, src=0)
        return total

    return pair_of(same, backward, summed, same)


def sums_on_rank_0_only():
    def forward(x):
        total = x.detach().clone()
        dist.reduce(total, dst=0)
        return total if dist.get_rank() == 0 else x.clone()

    return pair_of(same, summed, forward, same)


def sums_and_divides_backward():
    return pair_of(same, summed, summed, mean)


def makes_sure_of_the_copy():
    def forward(x):
        y = x.clone()
        dist.broadcast(y, src=0)
        return y

    return pair_of(forward, summed, summed, same)


def hooks_its_argument():
    def copy_to_ranks(x):
        x.register_hook(summed)  # sees all of x's gradient, also what did not come through here
        return x.view_as(x)

    return copy_to_ranks, pair_of(same, summed, summed, same)[1]


def keeps_one_buffer():
    buffers = {}

    def forward(x):
        buffer = buffers.setdefault(x.shape, torch.empty_like(x))
        dist.all_reduce(buffer.copy_(x.detach()))
        return buffer

    return pair_of(same, summed, forward, same)


def does_not_wait():
    def started(tensor):
        total = tensor.detach().clone()
        dist.all_reduce(total, async_op=True)
        return total

    return pair_of(same, started, started, same)


def takes_the_largest():
    def largest(tensor):
        total = tensor.detach().clone()
        dist.all_reduce(total, op=dist.ReduceOp.MAX)
        return total

    return pair_of(same, summed, largest, same)


def adds_in_float32():
    return pair_of(same, summed, lambda x: summed(x.float()).double(), same)


WRONG = [
    (exchanges_them, "are the two functions exchanged?"),
    (sums_nothing_backward, "it is this rank's own, and a sum over ranks is asked"),
    (sums_both_ways, "3 times too large"),
    (sums_in_place, "sum_over_ranks changed the tensor that it was given"),
    (sums_the_gradient_in_place, "copy_to_ranks changed the gradient that it was handed"),
    (averages_backward, "it is the mean over ranks"),
    (averages_forward, "it is the mean over ranks"),
    (scales_the_gradient, "the sum's own is asked"),
    (works_without_autograd, "it is this rank's own, and a sum over ranks is asked"),
    (loses_the_graph, "has no autograd graph"),
    (takes_the_libraries_sum, "3 times too large"),
    (returns_the_classes, "not the two functions"),
    (gives_no_gradient, "has no gradient"),
    (copies_from_rank_0, "off by"),
    (sums_and_divides_backward, "the gradient behind sum_over_ranks is right, but allreduce was called for it"),
    (makes_sure_of_the_copy, "what copy_to_ranks returns is right, but broadcast was called for it"),
    (hooks_its_argument, "only one came through copy_to_ranks"),
    (keeps_one_buffer, "a second sum_over_ranks changed what the first one had returned"),
    (does_not_wait, "it is this rank's own, and a sum over ranks is asked"),
    (takes_the_largest, "a sum over ranks is asked"),
    (adds_in_float32, "a sum over ranks is asked"),
    (sums_on_rank_0_only, "it is this rank's own, and a sum over ranks is asked"),
]


def gathers_and_adds():
    def gathered(tensor):
        everyone = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, tensor.contiguous())
        return sum(everyone)

    return pair_of(lambda x: x.clone(), gathered, gathered, lambda gradient: gradient.clone())


def uses_hooks():
    def copy_to_ranks(x):
        y = x.view_as(x)
        if y.requires_grad:
            y.register_hook(summed)
        return y

    def sum_over_ranks(x):
        return x + (summed(x) - x).detach()  # the sum's value, and the gradient of x alone

    return [copy_to_ranks, sum_over_ranks]


def hands_on_the_same_tensor():
    return pair_of(lambda x: x, summed, summed, lambda gradient: gradient)


RIGHT = [gathers_and_adds, uses_hooks, hands_on_the_same_tensor]
