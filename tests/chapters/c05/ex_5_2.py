# %%
import itertools

# %% wrong (adds to all its rows): cannot be applied to a 0-dim tensor
# first += tensor.to(first.device) → first[:] += tensor.to(first.device)
# %% wrong (sums on the first only): only the first holds the sum
# tensor.copy_(first) → pass
# %% wrong (shares memory): lies elsewhere in memory now
# tensor.copy_(first) → tensor.data = first.to(tensor.device)
# %% wrong (knows two only): 3 tensors of shape (4, 3)
# first, *others = tensors → first, *others = tensors[:2]

# %% wrong (flattens): `reshape` and `flatten` among them, make a copy
def all_reduce(tensors):
    flat = [tensor.reshape(-1) for tensor in tensors]
    total = sum(tensor.to(flat[0].device) for tensor in flat)
    for tensor in flat:
        tensor.copy_(total)

# %% right (adds up a copy)
def all_reduce(tensors):
    total = torch.zeros_like(tensors[-1])
    for tensor in tensors:
        total = total + tensor.to(total.device)
    for tensor in tensors:
        tensor[...] = total.to(tensor.device)
    return tensors

# %% wrong (adds up whole numbers as floats): with which dtype was it added
# torch.zeros_like(tensors[-1]) → torch.zeros_like(tensors[-1], dtype=torch.float64)
# %% wrong (gives names to new tensors): `a = a + b` makes a new tensor
# tensor[...] = → tensor =
# %% wrong (replaces the list): the list has other tensors in it now
# -     for tensor in tensors:
# -         tensor[...] = total.to(tensor.device)
# +     tensors[:] = [total.to(tensor.device, copy=True) for tensor in tensors]
# %% wrong (averages): that is the mean
# total.to(tensor.device) → total.to(tensor.device) / len(tensors)
# %% wrong (begins with the first): in it the first is counted twice
# torch.zeros_like(tensors[-1]) → tensors[0]
# %% wrong (gives it to the last only): only the last holds the sum
# -     for tensor in tensors:
# -         tensor[...] = total.to(tensor.device)
# +     for tensor in tensors[-1:]:
# +         tensor[...] = total.to(tensor.device)
# %% wrong (sums up on the way): what do the first ones miss?
# -         total = total + tensor.to(total.device)
# -     for tensor in tensors:
# +         total = total + tensor.to(total.device)

# %% right (goes round a ring, and through numpy on the cpu)
def all_reduce(tensors):
    for a, b in itertools.pairwise(tensors):
        b.add_(torch.from_numpy(a.cpu().numpy()).to(b.device))
    for tensor in tensors[:-1]:
        tensor.copy_(tensors[-1])

# %% wrong (goes through numpy on any device): has no numpy()
# a.cpu() → a
# %% wrong (writes into what is on the cpu): keeps its numbers: what is written to
# tensor.copy_(tensors[-1]) → tensor.cpu().copy_(tensors[-1])
# %% wrong (passes it on at once): the last is right, and each of the others holds what was summed up
# -     for tensor in tensors[:-1]:
# -         tensor.copy_(tensors[-1])
# +         a.copy_(b)

# %% wrong (adds to everyone in turn): was one changed before another had read it
def all_reduce(tensors):
    for tensor, other in itertools.permutations(tensors, 2):
        tensor += other.to(tensor.device)
