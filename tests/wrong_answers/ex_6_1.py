"""Exercise 6.1: answers that its check must refuse, each with words from the reason that it must give."""

import sys

import torch


def moves_nothing(x, first, second, third, fourth, device0, device1):
    skip = first(x)
    return fourth(third(second(skip)) + skip)


def forgets_the_skip(x, first, second, third, fourth, device0, device1):
    skip = first(x.to(device0))
    return fourth(third(second(skip).to(device1)) + skip)


def adds_the_skip_in_place(x, first, second, third, fourth, device0, device1):
    skip = first(x.to(device0))
    h = third(second(skip).to(device1))
    return fourth(skip.add_(h))


def forgets_the_main_path(x, first, second, third, fourth, device0, device1):
    skip = first(x.to(device0))
    return fourth(third(second(skip)) + skip.to(device1))


def forgets_x(x, first, second, third, fourth, device0, device1):
    skip = first(x)
    return fourth(third(second(skip).to(device1)) + skip.to(device1))


def moves_x_to_the_wrong_side(x, first, second, third, fourth, device0, device1):
    skip = first(x.to(device1))
    return fourth(third(second(skip).to(device1)) + skip.to(device1))


def sums_on_device_0(x, first, second, third, fourth, device0, device1):
    skip = first(x.to(device0))
    h = third(second(skip).to(device1))
    return fourth((h.to(device0) + skip).to(device1))


def returns_to_device_0(x, first, second, third, fourth, device0, device1):
    skip = first(x.to(device0))
    return fourth(third(second(skip).to(device1)) + skip.to(device1)).to("cpu")


def computes_the_first_twice(x, first, second, third, fourth, device0, device1):
    x = x.to(device0)
    return fourth(third(second(first(x)).to(device1)) + first(x).to(device1))


def moves_the_modules(x, first, second, third, fourth, device0, device1):
    for module in (first, second):
        module.to(device0)
    for module in (third, fourth):
        module.to(device1)
    skip = first(x.to(device0))
    return fourth(third(second(skip).to(device1)) + skip.to(device1))


def detaches_the_skip(x, first, second, third, fourth, device0, device1):
    skip = first(x.to(device0))
    return fourth(third(second(skip).to(device1)) + skip.detach().to(device1))


def detaches_the_main_path(x, first, second, third, fourth, device0, device1):
    skip = first(x.to(device0))
    h = second(skip).detach().to(device1)
    return fourth(third(h) + skip.to(device1))


def detaches_both(x, first, second, third, fourth, device0, device1):
    skip = first(x.to(device0)).detach()
    return fourth(third(second(skip).to(device1)) + skip.to(device1))


def runs_without_gradients(x, first, second, third, fourth, device0, device1):
    with torch.no_grad():
        skip = first(x.to(device0))
        return fourth(third(second(skip).to(device1)) + skip.to(device1))


def hides_a_crossing_from_autograd(x, first, second, third, fourth, device0, device1):
    skip = first(x.to(device0))
    h = third(second(skip).to(device1))
    with torch.no_grad():  # where there is one device, .to hands back the tensor itself, and nothing is lost
        crossed = skip.to(device1)
    return fourth(h + crossed)


def hides_the_main_crossing(x, first, second, third, fourth, device0, device1):
    skip = first(x.to(device0))
    h = second(skip)
    with torch.no_grad():
        h = h.to(device1)
    return fourth(third(h) + skip.to(device1))


def adds_into_what_crossed(x, first, second, third, fourth, device0, device1):
    skip = first(x.to(device0))
    h = third(second(skip).to(device1))
    crossed = skip.to(device1)  # with one device `skip` itself, which `second` needs in its backward pass
    crossed += h
    return fourth(crossed)


def leaves_the_skip_out(x, first, second, third, fourth, device0, device1):
    return fourth(third(second(first(x.to(device0))).to(device1)))


def skips_with_x(x, first, second, third, fourth, device0, device1):
    h = second(first(x.to(device0))).to(device1)
    return fourth(third(h) + x.to(device1))


def skips_from_the_second(x, first, second, third, fourth, device0, device1):
    h = second(first(x.to(device0))).to(device1)
    return fourth(third(h) + h)


def sums_after_the_fourth(x, first, second, third, fourth, device0, device1):
    skip = first(x.to(device0))
    return fourth(third(second(skip).to(device1))) + skip.to(device1)


def averages(x, first, second, third, fourth, device0, device1):
    skip = first(x.to(device0))
    return fourth((third(second(skip).to(device1)) + skip.to(device1)) / 2)


def returns_nothing(x, first, second, third, fourth, device0, device1):
    skip = first(x.to(device0))
    fourth(third(second(skip).to(device1)) + skip.to(device1))


def ends_the_program(x, first, second, third, fourth, device0, device1):
    sys.exit()


WRONG = [
    (moves_nothing, "`third` is on device1, here meta, and was given a tensor on cpu"),
    (forgets_the_skip, "mixes tensors on cpu and meta"),
    (adds_the_skip_in_place, "`fourth` is on device1"),
    (forgets_the_main_path, "`third` is on device1"),
    (forgets_x, "`first` is on device0, here meta, and was given a tensor on cpu"),
    (moves_x_to_the_wrong_side, "`first` is on device0, here cpu, and was given a tensor on meta"),
    (sums_on_device_0, "is moved from device1 back"),
    (returns_to_device_0, "is moved from device1 back"),
    (computes_the_first_twice, "`first` was called 2 times"),
    (moves_the_modules, "`first` was moved"),
    (detaches_the_skip, "along both arrows that cross the cut"),
    (detaches_the_main_path, "no gradient reaches `second`"),
    (detaches_both, "no gradient reaches `first`"),
    (runs_without_gradients, "has no autograd graph"),
    (hides_a_crossing_from_autograd, "gradients cannot reach all modules"),
    (hides_the_main_crossing, "gradients cannot reach all modules"),
    (adds_into_what_crossed, "was changed in place"),
    (leaves_the_skip_out, "the skip connection is missing"),
    (skips_with_x, "the skip hands on x itself"),
    (skips_from_the_second, "the skip is taken after `second`"),
    (sums_after_the_fourth, "the sum is made after `fourth`"),
    (averages, "write the formula from the inside out"),
    (returns_nothing, "the answer is None, not a tensor"),
    (ends_the_program, "ended the program before your function returned"),
    (7, "give it your function's name"),
]


def asks_the_weights_where_to_go(x, first, second, third, fourth, device0, device1):
    def bring(tensor, module):
        return tensor.to(next(module.parameters()).device, non_blocking=True)

    a = first(bring(x, first))
    h = third(bring(second(a), third))
    h += bring(a, fourth)
    return fourth(h)


def copies_into_place(x, first, second, third, fourth, device0, device1):
    a = first(torch.empty_like(x, device=device0).copy_(x))
    crossing = torch.stack([a, second(a)]).to(device1)  # both in one message
    return fourth(torch.add(third(crossing[1]), crossing[0]))


class Crossing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, device):
        ctx.device = tensor.device
        return tensor.to(device, copy=True)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.to(ctx.device), None


def writes_the_crossing_itself(x, first, second, third, fourth, device0, device1):
    skip = first.forward(x.to(device0))
    chain = torch.nn.Sequential(second, Passing(device1), third)
    return fourth(sum([chain(skip), Crossing.apply(skip, device1)]))


class Passing(torch.nn.Module):
    def __init__(self, device):
        super().__init__()
        self.device = device

    def forward(self, x):
        return Crossing.apply(x, self.device)


RIGHT = [asks_the_weights_where_to_go, copies_into_place, writes_the_crossing_itself]
