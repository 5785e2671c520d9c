# %%
notebooks_device = torch.device("cpu")  # as it is where there is no GPU

# %% wrong (drops the mean): the colours' mean is no longer subtracted
# images - mean → images
# %% wrong (drops the rarity): all classes count alike
# labels, weight=rarity → labels
# %% wrong (drops zero grad): gradients of the last step are still there
# -     optimizer.zero_grad()
# + 
# %% wrong (doubles the loss): losses or parameters are not those of the original step
# return loss → return 2 * loss
# %% wrong (brings the model to the images): the step moves the model
# device = next(model.parameters()).device → device = next(model.to(images.device).parameters()).device
# %% wrong (looks at the value on a GPU): asks for a number that is on cuda:1
# return loss.detach() → return loss.detach() if device.type != "cuda" or loss > 0 else None
# %% wrong (prints the loss): makes a text of a tensor that is on meta
# return loss.detach() → print(loss); return loss.detach()
# %% wrong (prints a line with the loss): makes a text of a tensor that is on meta
# return loss.detach() → print(f"loss {loss}"); return loss.detach()
# %% wrong (prints it with three places): makes a text of a tensor that is on meta
# return loss.detach() → print(f"{loss:.3f}"); return loss.detach()
# %% wrong (keeps a list of texts): makes a text of a tensor that is on meta
# return loss.detach() → str([loss]); return loss.detach()
# %% wrong (prints on a GPU only): makes a text of a tensor that is on cuda:1
# return loss.detach() → repr(loss) if device.type == "cuda" else ""; return loss.detach()
# %% wrong (makes a list of the loss): makes a list of a tensor that is on meta
# return loss.detach() → loss.tolist(); return loss.detach()
# %% wrong (makes an array of the loss): makes a NumPy array of a tensor that is on meta
# return loss.detach() → loss.detach().numpy(); return loss.detach()
# %% wrong (takes the item): asks for a number that is on meta
# return loss.detach() → loss.item(); return loss.detach()
# %% wrong (looks whether it can have the item): asks for a number that is on meta
# -     return loss.detach()
# +     try:
# +         float(loss)
# +     except RuntimeError:
# +         pass
# +     return loss.detach()
# %% right (prints what is no value)
# return loss.detach() → print(loss.shape, f"{loss.device} {loss.dtype}", len(labels)); return loss.detach()
# %% wrong (brings the loss home): brings a tensor from meta to the CPU
# return loss.detach() → return loss.cpu()
# %% wrong (makes a new tensor of the loss): the loss has shape (1,)
# return loss.detach() → return loss.detach().reshape(1)
# %% wrong (steps twice): the optimizer made 8 steps for 4 batches
# optimizer.step() → optimizer.step(optimizer.step())
# %% wrong (leaves a default device): the default device is meta afterwards
# optimizer.zero_grad() → torch.set_default_device(device); optimizer.zero_grad()

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
