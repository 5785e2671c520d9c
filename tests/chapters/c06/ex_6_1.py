# %%
import sys


class Crossing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, device):
        ctx.device = tensor.device
        return tensor.to(device, copy=True)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.to(ctx.device), None


class Passing(torch.nn.Module):
    def __init__(self, device):
        super().__init__()
        self.device = device

    def forward(self, x):
        return Crossing.apply(x, self.device)

# %% wrong (forgets x): `first` is on device0, here meta, and was given a tensor on cpu
# x.to(device0) → x
# %% wrong (moves x to the wrong side): `first` is on device0, here cpu, and was given a tensor on meta
# x.to(device0) → x.to(device1)
# %% wrong (forgets the skip): mixes tensors on cpu and meta: has everything crossed
# h + skip.to(device1) → h + skip
# %% wrong (sums on device 0): what has to come back from there
# h + skip.to(device1) → (h.to(device0) + skip).to(device1)
# %% wrong (adds into what crossed): was changed in place. Where a tensor is there already
# h + skip.to(device1) → skip.to(device1).add_(h)
# %% wrong (detaches the skip): the output is right and the gradients are not
# h + skip → h + skip.detach()
# %% wrong (detaches the main path): no gradient reaches `second`
# second(skip) → second(skip).detach()
# %% wrong (makes a new tensor): has no autograd graph
# return fourth(h + skip.to(device1)) → return fourth(h + skip.to(device1)).data
# %% wrong (leaves the sum to the layer): `fourth` was given (
# fourth(h + skip.to(device1)) → fourth((h, skip.to(device1)))
# %% wrong (returns the skip): and belongs on device1
# return fourth(h + skip.to(device1)) → fourth(h + skip.to(device1)); return skip
# %% wrong (hides the skip's crossing): gradients cannot reach all modules
# -     return fourth(h + skip.to(device1))
# +     with torch.no_grad():
# +         skip = skip.to(device1)
# +     return fourth(h + skip)
# %% wrong (leaves the skip out): the skip connection is missing
# h + skip.to(device1) → h
# %% wrong (skips with x): the skip hands on x itself
# h + skip → h + x
# %% wrong (skips from the second): the skip is taken after `second`
# first(x.to(device0)) → second(first(x.to(device0)))
# third(second(skip) → third((skip)
# %% wrong (sums after the fourth): the sum is made after `fourth`
# fourth(h + skip.to(device1)) → fourth(h) + skip.to(device1)
# %% wrong (sums before the third): the sum is made before `third`
# third(second(skip).to(device1)) → second(skip).to(device1)
# h + skip.to(device1) → third(h + skip.to(device1))
# %% wrong (averages): write the formula from the inside out
# h + skip.to(device1) → (h + skip.to(device1)) / 2
# %% wrong (returns nothing): the answer is None, not a tensor
# return fourth → fourth
# %% wrong (computes the first twice): `first` was called 2 times
# h + skip.to(device1) → h + first(x.to(device0)).to(device1)
# %% wrong (moves the modules): `first` was moved
# first(x.to(device0)) → first.to(device0)(x.to(device0))
# %% right (copies into place, both in one message)
def forward_with_skip(x, first, second, third, fourth, device0, device1):
    a = first(torch.empty_like(x, device=device0).copy_(x))
    crossing = torch.stack([a, second(a)]).to(device1)
    return fourth(torch.add(third(crossing[1]), crossing[0]))

# %% wrong (7): give it your function's name
forward_with_skip = 7
