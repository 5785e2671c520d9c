# %%
from torch.utils.checkpoint import checkpoint_sequential


def apply_with(blocks, x, num_recomputed):
    for i, block in enumerate(blocks):
        x = recompute(block, x, use_reentrant=False) if i < num_recomputed else block(x)
    return x


def held_by(blocks, x, num_recomputed):
    with memory.Activations(nn.Sequential(*blocks)) as held:
        apply_with(blocks, x, num_recomputed)
    return held.num_bytes

# %% wrong (draws anew): drew other random numbers than in its forward pass
# use_reentrant=False → use_reentrant=False, preserve_rng_state=False
# %% right (by trial)
def forward_within(blocks, x, budget_bytes):
    for k in range(len(blocks) + 1):
        if held_by(blocks, x, k) <= budget_bytes:
            return apply_with(blocks, x, k)
    raise ValueError(budget_bytes)

# %% wrong (wants to hold less): 1 block was recomputed: are fewer enough
# <= budget_bytes → < budget_bytes
# %% wrong (is off by one byte): is that within the budget
# <= budget_bytes → <= budget_bytes + 1
# %% wrong (never gives up): and a ValueError should be raised
# raise ValueError(budget_bytes) → return apply_with(blocks, x, k)
# %% wrong (raises another error): and a ValueError that says why is asked
# raise ValueError(budget_bytes) → raise MemoryError(budget_bytes)
# %% wrong (goes in one piece): how much is recomputed in one go?
# return apply_with(blocks, x, k) → return apply_with([nn.Sequential(*blocks)], x, 1) if k == len(blocks) else apply_with(blocks, x, k)
# %% wrong (cuts the graph): cut off from the graph
# return apply_with(blocks, x, k) → return apply_with(blocks, x, k).detach()
# %% wrong (cuts between blocks): want a gradient got none
# return apply_with(blocks, x, k) → return blocks[-1](apply_with(blocks[:-1], x, k).detach())
# %% wrong (turns the list round): what the last block makes of
# return apply_with(blocks, x, k) → return apply_with(blocks[::-1], x, k)
# %% wrong (tries the backward pass too): the gradients are not those that one forward pass has
# return apply_with(blocks, x, k) → return apply_with(blocks, x, k) if apply_with(blocks, x, k).sum().backward() is None else None
# %% wrong (forgets to return): the output of the last block is wanted
# return apply_with(blocks, x, k) → return None
# %% right (from the other side)
def forward_within(blocks, x, budget_bytes):
    k = len(blocks)
    if held_by(blocks, x, k) > budget_bytes:
        raise ValueError(f"{budget_bytes} bytes are too few")
    while k and held_by(blocks, x, k - 1) <= budget_bytes:
        k -= 1
    return apply_with(blocks, x, k)
# %% right (halves the range, a lambda)
import bisect


def forward_within(blocks, x, budget_bytes):
    k = bisect.bisect_left(range(len(blocks) + 1), True, key=lambda k: held_by(blocks, x, k) <= budget_bytes)
    if k > len(blocks):
        raise ValueError(f"{budget_bytes} bytes are too few, whatever is recomputed")
    for i in range(k):
        x = recompute(lambda y, i=i: blocks[i](y), x, use_reentrant=False)
    for i in range(k, len(blocks)):
        x = blocks[i](x)
    return x
# %% right (recomputes the last ones)
def forward_within(blocks, x, budget_bytes):
    def apply(y, k):
        for i, block in enumerate(blocks):
            y = block(y) if i < len(blocks) - k else recompute(block, y, use_reentrant=False)
        return y

    for k in range(len(blocks) + 1):
        with memory.Activations(nn.ModuleList(blocks)) as activations:
            apply(x, k)
        if activations.num_bytes <= budget_bytes:
            return apply(x, k)
    raise ValueError(f"no way to stay within {budget_bytes} bytes")
