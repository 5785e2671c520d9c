# %%
import copy

# %% right (converts a copy)
def model_bytes(model, dtype):
    converted = copy.deepcopy(model).to(dtype)  # a deep copy keeps shared tensors shared
    return sum(t.nbytes for t in [*converted.parameters(), *converted.buffers()])

# %% wrong (counts gradients too): bytes too many
# *converted.buffers()] → *converted.buffers(), *[p.grad for p in model.parameters() if p.grad is not None]]

# %% right (remembers what it has seen)
def model_bytes(model, dtype):
    seen, total = set(), torch.tensor(0)
    for layer in model.modules():
        for tensor in [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                kept = tensor.dtype if not tensor.is_floating_point() else dtype
                total += tensor.numel() * torch.empty(0, dtype=kept).element_size()
    return total

# %% wrong (goes layer by layer): that counts the shared weight twice
# if id(tensor) not in seen → if True

# %% wrong (counts what is there now): before the conversion
def model_bytes(model, dtype):
    return sum(t.nbytes for t in [*model.parameters(), *model.buffers()])

# %% wrong (leaves out buffers): that leaves out the buffers
# t.nbytes for t in [*model.parameters(), *model.buffers()] → p.numel() * dtype.itemsize for p in model.parameters()
# %% wrong (converts whole numbers): in bfloat16: 258 came back: that converts whole numbers
# nbytes → numel() * dtype.itemsize
# %% wrong (counts elements): a number of elements and not of bytes
# nbytes → numel()
# %% wrong (counts what is saved): that leaves out a buffer that is not saved
# [*model.parameters(), *model.buffers()] → copy.deepcopy(model).to(dtype).state_dict().values()
# %% wrong (halves what is there): that is half of what it takes now
# return sum(t.nbytes for t in [*model.parameters(), *model.buffers()]) → return model_bytes_now(model) // (2 if dtype == torch.bfloat16 else 1)
# - def model_bytes(model, dtype):
# + def model_bytes_now(model):
# +     return sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
# +
# +
# + def model_bytes(model, dtype):
# %% wrong (converts the model): has another shape
# - def model_bytes(model, dtype):
# + def model_bytes(model, dtype):
# +     model.to(dtype)
# %% wrong (converts there and back): was changed in place
# return sum(t.nbytes for t in [*model.parameters(), *model.buffers()]) → return total
# - def model_bytes(model, dtype):
# + def model_bytes(model, dtype):
# +     before = {name: t.dtype for name, t in model.state_dict().items()}
# +     total = sum(t.nbytes for t in [*model.to(dtype).parameters(), *model.buffers()])
# +     for name, t in model.named_parameters():
# +         t.data = t.data.to(before[name])
# +     for name, t in model.named_buffers():
# +         t.data = t.data.to(before.get(name, torch.float32))
# %% wrong (divides eight bits): not a whole number
# t.nbytes → t.numel() * torch.finfo(dtype).bits / 8
# %% wrong (takes whole numbers for eight bytes): bytes too many
# t.nbytes → t.numel() * (dtype.itemsize if t.is_floating_point() else 8)
