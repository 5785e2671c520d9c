# %% wrong (remembers a model's rows): once it has become float64
# - def list_state(model):
# + @__import__("functools").cache
# + def list_state(model):
# %% wrong (takes four bytes for all): not every dtype takes 4 bytes
# tensor.element_size() → 4
# %% wrong (counts elements): an element takes more than one byte
#  * tensor.element_size() →  * 1
# %% wrong (counts the whole storage): only a part of the memory that they lie in
# tensor.numel() * tensor.element_size() → tensor.untyped_storage().nbytes()
# %% wrong (divides bits into a fraction): not a whole number
# tensor.element_size() → tensor.element_size() * 8 / 8
# %% wrong (leaves the device a device): which is not a text
# str(tensor.device) → tensor.device
# %% wrong (asks the first tensor where it is): is each tensor asked where it is?
# str(tensor.device) → str(next(model.parameters(), tensor).device)
# %% wrong (leaves the shape a list): the shape is [3, 4], not a tuple
# tuple(tensor.shape) → list(tensor.shape)
# %% wrong (turns the shape round): its own is another
# tuple(tensor.shape) → tuple(tensor.shape)[::-1]
# %% wrong (forgets the shape): row 0 holds 3 items
# name, tuple(tensor.shape), str → name, str
# %% wrong (begins with the shape): and not with a name
# name, tuple(tensor.shape), str → tuple(tensor.shape), name, str
# %% wrong (lists parameters only): a state_dict holds more than parameters
# model.state_dict().items() → model.named_parameters()
# %% wrong (adds what is not saved): there is a row ['scratch'], which is not in the state_dict
# model.state_dict().items() → (model.state_dict() | dict(model.named_buffers())).items()
# %% wrong (sorts by name): the rows come in the order
# model.state_dict().items() → sorted(model.state_dict().items())
# %% wrong (returns a generator): not a list or tuple of rows
# return [ → rows = [
# -     ]
# +     ]
# +     return iter(rows)
# %% wrong (prints the rows): is it returned, or only printed?
# return [ → rows = [
# -     ]
# +     ]
# +     print(rows)
# %% wrong (converts before it looks): has another shape
# - def list_state(model):
# + def list_state(model):
# +     model.float()

# %% right (asks for nbytes)
def list_state(model):
    rows = []
    for name, tensor in model.state_dict().items():
        rows.append([name, tensor.shape, f"{tensor.device}", tensor.nbytes])  # torch.Size is a tuple
    return rows
