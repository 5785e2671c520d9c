# %%
import copy
from torch.utils._pytree import tree_map_only

# %% wrong (makes lists of tuples): is a list, and was a tuple: the kind of container must stay
# return type(batch)(move(value, device) for value in batch) → return [move(value, device) for value in batch]
# %% wrong (forgets tuples): a pair of tensors to meta: the result[0] is still on cpu
# isinstance(batch, (list, tuple)) → isinstance(batch, list)
# %% wrong (goes one level deep): a list in a dict to meta: the result['images'][0] is still on cpu
# for key, value in → if isinstance(value, torch.Tensor) else value for key, value in
# %% wrong (leaves out what is no tensor): has 1 items, and had 6
# in batch.items() → in batch.items() if isinstance(value, (torch.Tensor, list, dict, tuple))
# %% wrong (makes texts of keys): has other keys than before
# key: move → str(key): move
# %% wrong (takes texts for lists): called itself for ever
# if isinstance(batch, (list, tuple)) → if hasattr(batch, "__iter__")
# return type(batch)(move(value, device) for value in batch) → return type(batch)([move(value, device) for value in batch])
# %% wrong (drops what it does not know): is None, and was 'seven', which should come back as it is
# -     return batch
# + 
# %% wrong (moves the layers too): batch['layer'].weight has another shape
# isinstance(batch, torch.Tensor) → hasattr(batch, "to")

# %% right (lets torch walk)
def move(batch, device):
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), batch)

# %% wrong (converts labels): result[1] is torch.float32 of shape (2,), and was
# tensor.to(device) → tensor.to(device, torch.float32)
# %% wrong (makes room only): holds other numbers than before
# tensor.to(device) → torch.empty_like(tensor, device=device).fill_(0)
# %% wrong (copies what does not move): is a copy of what was there
# tensor.to(device), batch → tensor.to(device), copy.deepcopy(batch)
# %% wrong (sends a number back): the result is 0, and was a tensor
# tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), batch) → 0
