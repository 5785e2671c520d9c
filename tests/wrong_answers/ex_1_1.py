# %% right (asks for nbytes)
def list_state(model):
    rows = []
    for name, tensor in model.state_dict().items():
        rows.append([name, tensor.shape, f"{tensor.device}", tensor.nbytes])  # torch.Size is a tuple
    return rows

# %% right (multiplies the shape)
def list_state(model):
    def row(name, tensor):
        return name, (*tensor.shape,), str(tensor.device), torch.tensor(tensor.shape).prod().long() * tensor.dtype.itemsize

    return tuple(row(*item) for item in model.state_dict().items())

# %% right (writes a row for each)
def list_state(model):
    return [(name, tuple(t.shape), str(t.device), t.nbytes) for name, t in model.state_dict().items()]

# %% wrong (takes four bytes for all): not every dtype takes 4 bytes
# t.nbytes → 4 * t.numel()
# %% wrong (counts elements): an element takes more than one byte
# t.nbytes → t.numel()
# %% wrong (counts the whole storage): only a part of the memory that they lie in
# t.nbytes → t.untyped_storage().nbytes()
# %% wrong (measures the python object): but the tensor has 3 elements
# t.nbytes → t.__sizeof__()
# %% wrong (divides bits into a fraction): not a whole number
# t.nbytes → t.nbytes * 8 / 8
# %% wrong (leaves the device a device): which is not a text
# str(t.device) → t.device
# %% wrong (asks the first tensor where it is): is each tensor asked where it is?
# str(t.device) → str(next(model.parameters(), t).device)
# %% wrong (names the kind of device): which of the GPUs is it?
# str(t.device) → t.device.type
# %% wrong (leaves the shape a list): the shape is [3, 4], not a tuple
# tuple(t.shape) → list(t.shape)
# %% wrong (turns the shape round): its own is another
# tuple(t.shape) → tuple(t.shape)[::-1]
# %% wrong (forgets the shape): row 0 holds 3 items
# name, tuple(t.shape), str → name, str
# %% wrong (begins with the shape): and not with a name
# name, tuple(t.shape) → tuple(t.shape), name
# %% wrong (lists parameters only): a state_dict holds more than parameters
# state_dict().items() → named_parameters()
# %% wrong (forgets the last): does the answer go through all of them?
# for name, t in model.state_dict().items() → for name, t in list(model.state_dict().items())[:-1]
# %% wrong (adds what is not saved): there is a row ['scratch'], which is not in the state_dict
# model.state_dict().items() → (model.state_dict() | dict(model.named_buffers())).items()
# %% wrong (sorts by name): the rows come in the order
# model.state_dict().items() → sorted(model.state_dict().items())
# %% wrong (returns a dict): not a list or tuple of rows
# [(name, tuple(t.shape), str(t.device), t.nbytes) for → {name: (tuple(t.shape), str(t.device), t.nbytes) for
# model.state_dict().items()] → model.state_dict().items()}
# %% wrong (prints the rows): is it returned, or only printed?
# return [ → print([
# model.state_dict().items()] → model.state_dict().items()])
# %% wrong (converts before it looks): has another shape
# return → model.float(); return
