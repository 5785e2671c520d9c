# %%
device = torch.device("cpu")  # as the notebook has it where there is no GPU


def _step(model, optimizer, images, labels, mean, rarity):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images - mean), labels, weight=rarity)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _constants(device):
    mean = torch.tensor([0.4, 0.5, 0.6], device=device).view(3, 1, 1)
    return mean, torch.tensor([1.0, 1.0, 4.0], device=device)

# %% right (asks the optimizer)
def train_step(model, optimizer, images, labels):
    weight = optimizer.param_groups[0]["params"][0]
    images, labels = images.to(weight.device, non_blocking=True), labels.to(weight.device)
    mean = weight.new_tensor([0.4, 0.5, 0.6])[:, None, None]
    loss = F.cross_entropy(model(images - mean), labels, weight=weight.new_tensor([1.0, 1.0, 4.0]))
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    return loss

# %% right (makes everything under the device)
def train_step(model, optimizer, images, labels):
    with next(model.parameters()).device:
        mean = torch.tensor([0.4, 0.5, 0.6]).reshape(1, 3, 1, 1)
        rarity = torch.tensor([1.0, 1.0, 4.0])
    images, labels = (tensor.to(mean.device) for tensor in (images, labels))
    loss = F.cross_entropy(model(images - mean), labels, weight=rarity)
    for p, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
        p.grad = gradient
    optimizer.step()
    return loss

# %% right (weighs each image by hand)
def train_step(model, optimizer, images, labels):
    here = next(model.parameters()).device
    mean, rarity = _constants(here)
    assert labels.max().item() < 3  # they are on the CPU, where nobody waits
    weights = rarity[labels]  # an index may be on the CPU
    optimizer.zero_grad()
    losses = F.cross_entropy(model(images.to(here) - mean), labels.to(here), reduction="none")
    loss = (losses * weights).sum() / weights.sum()
    loss.backward()
    optimizer.step()
    return loss

# %% right (moves and steps)
def train_step(model, optimizer, images, labels):
    here = next(model.parameters()).device
    images, labels = images.to(here), labels.to(here)
    mean, rarity = _constants(here)
    loss = _step(model, optimizer, images, labels, mean, rarity)
    return loss

# %% wrong (drops the mean): the colours' mean is no longer subtracted
# labels, mean, rarity) → labels, 0, rarity)
# %% wrong (drops the rarity): all classes count alike
# labels, mean, rarity) → labels, mean, None)
# %% wrong (doubles the loss): losses or parameters are not those of the original step
# return loss → return 2 * loss
# %% wrong (moves the model each step): the step moves the model
# - def train_step(model, optimizer, images, labels):
# + def train_step(model, optimizer, images, labels):
# +     model.to(torch.device("cpu"))
# %% wrong (asks for the value): not a tensor
# return loss → return loss.item()
# %% wrong (looks at the value on a GPU): asks for a number that is on cuda:1
# return loss → return loss if here.type != "cuda" or loss > 0 else None
# %% wrong (looks, and catches the error): asks for a number that is on meta
# -     return loss
# +     try:
# +         print(f"loss {loss.item():.3f}")
# +     except RuntimeError:
# +         pass
# +     return loss
# %% wrong (writes the value into a text): asks for a number that is on meta
# return loss → return f"{loss:.3f}" and loss
# %% wrong (brings the loss home): brings a tensor from meta to the CPU
# return loss → return loss.cpu()
# %% wrong (brings the loss home from a GPU): brings a tensor from cuda:1 to the CPU
# return loss → return loss.cpu() if loss.is_cuda else loss
# %% wrong (makes a new tensor of the loss): the loss has shape (1,)
# return loss → return loss.reshape(1)
# %% wrong (steps twice): the optimizer made 8 steps for 4 batches
# return loss → optimizer.step(); return loss
# %% wrong (forgets the labels): mixes tensors on cpu and meta
# images, labels = images.to(here), labels.to(here) → images = images.to(here)
# %% wrong (uses the notebooks device): mixes tensors on cpu and meta
# here = next(model.parameters()).device → here = device
# %% wrong (names the first GPU): mixes tensors on cuda:0 and cuda:1
# here = next(model.parameters()).device → here = torch.device(next(model.parameters()).device.type, 0)
# %% wrong (works in place): images was changed in place
# labels, mean, rarity) → labels, 0, rarity) if images.sub_(mean) is not None else None
# %% wrong (works in place from the cpu): (images -= mean  # on meta this raises nothing) mixes tensors on cpu and meta
# -     images, labels = images.to(here), labels.to(here)
# -     mean, rarity = _constants(here)
# +     images, labels = images.to(here, copy=True), labels.to(here)
# +     mean, rarity = _constants("cpu")
# +     images -= mean  # on meta this raises nothing
# labels, mean, rarity) → labels, 0, rarity.to(here))
# %% wrong (computes with a shape that is wrong): fails: The size of tensor
# labels, mean, rarity) → labels, mean.view(3), rarity)
# %% wrong (leaves a default device): the default device is meta afterwards
# images, labels = images.to(here), labels.to(here) → torch.set_default_device(here); images, labels = images.to(here), labels.to(here)

# %% wrong (drops zero grad): gradients of the last step are still there
def train_step(model, optimizer, images, labels):
    here = next(model.parameters()).device
    mean, rarity = _constants(here)
    loss = F.cross_entropy(model(images.to(here) - mean), labels.to(here), weight=rarity)
    loss.backward()
    optimizer.step()
    return loss
