# %%
import hashlib


def flatten(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def gather(mine):
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return everyone

# %% wrong (holds each against the mean): all ranks are alike
def find_odd_rank(model):
    mine = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    mean, far = mine.clone(), [None] * dist.get_world_size()
    dist.all_reduce(mean)
    dist.all_gather_object(far, (mine - mean / len(far)).abs().max().item())
    return far.index(max(far)) if max(far) else None
# %% right (compares all bits)
def find_odd_rank(model):
    values = [value.numpy().tobytes() for value in gather(flatten(model))]
    for rank, value in enumerate(values):
        if values.count(value) == 1:
            return rank

# %% wrong (compares numbers, so that no NaN is equal): are NaNs of the same bits alike to it
# value.numpy().tobytes() → value.tolist()
# %% wrong (compares norms): so that their sum is right
# gather(flatten(model)) → gather(flatten(model).norm())
# %% wrong (compares in float32): is anything rounded
# gather(flatten(model)) → gather(flatten(model).float())
# %% wrong (compares buffers, too): which tensors are parameters?
# gather(flatten(model)) → gather(torch.cat([t.flatten() for t in model.state_dict().values()]))
# %% wrong (returns yes or no): neither a whole number nor None
# return rank → return True
# %% wrong (counts on four ranks): where rank 4 is the odd one
# enumerate(values) → enumerate(values[:4])
# %% wrong (knows a majority of three only): does it work on 3 ranks?
# values.count(value) == 1 → values.count(value) < 3
# %% wrong (only rank 0 looks): they must agree
# values.count(value) == 1: → values.count(value) == 1 and dist.get_rank() == 0:

# %% wrong (compares roughly): are all parameters compared
def find_odd_rank(model):
    everyone = gather(flatten(model))
    for rank, one in enumerate(everyone):
        if sum(torch.allclose(one, other) for other in everyone) == 1:
            return rank

# %% wrong (compares with rank 0): with whom is each rank compared?
# if sum(torch.allclose(one, other) for other in everyone) == 1: → if not torch.equal(one, everyone[0]):
# %% endless (receives before it sends): ranks 0–3 were in recv at
def find_odd_rank(model):
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = flatten(model)
    theirs = torch.empty_like(mine)
    dist.recv(theirs, src=(rank - 1) % size)
    dist.send(mine, dst=(rank + 1) % size)
    return None if torch.equal(mine, theirs) else rank
