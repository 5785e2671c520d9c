# %% wrong (clips the first group): is it clipped as a whole
# model.parameters(), max_norm) → optimizer.param_groups[0]["params"], max_norm)
# %% right (one context for all)
def amp_step(model, optimizer, scaler, x, y, max_norm):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()

# %% wrong (names the CPU): for which device is autocast on
# x.device.type → "cpu"
# %% wrong (computes on the CPU): fails on a GPU at `loss = F.cross
# model(x) → model(x.cpu())
# %% wrong (forgets autocast): the first layer's output was float32
# torch.autocast(x.device.type, torch.float16) → torch.autocast(x.device.type, enabled=False)
# %% wrong (computes the loss outside): the loss itself had 16 bits
# -         loss = F.cross_entropy(model(x), y)
# +         output = model(x)
# +     loss = F.cross_entropy(output, y)
# %% wrong (runs backward inside autocast): the backward pass ran inside autocast
# -     scaler.scale(loss).backward()
# +         scaler.scale(loss).backward()
# %% wrong (calls no model): the model was not called
# model(x), y) → F.linear(F.linear(x.flatten(1), model[1].weight), model[3].weight), y)
# %% wrong (never clears): still held gradients of the step before
# -     optimizer.zero_grad()
# + 
# %% wrong (forgets to scale): the loss was never scaled
# -     scaler.scale(loss).backward()
# -     scaler.unscale_(optimizer)
# +     loss.backward()
# -     scaler.step(optimizer)
# -     scaler.update()
# +     optimizer.step()
# %% wrong (steps past the scaler): nobody would look for inf
# scaler.step(optimizer) → optimizer.step()
# %% wrong (clips before it calls unscale): who divides by the scale once it is clipped
# -     scaler.unscale_(optimizer)
# -     nn.utils.clip_grad_norm_(model.parameters(), max_norm)
# +     nn.utils.clip_grad_norm_(model.parameters(), max_norm)
# %% wrong (divides by hand, too): it was divided by the scale twice
# -     nn.utils.clip_grad_norm_(model.parameters(), max_norm)
# +     for p in model.parameters():
# +         p.grad /= scaler.get_scale()
# %% wrong (never clips): it was not clipped, or too late
# model.parameters(), max_norm) → model.parameters(), math.inf)
# %% wrong (steps with the scaled gradient): it was still scaled
# -     scaler.unscale_(optimizer)
# -     nn.utils.clip_grad_norm_(model.parameters(), max_norm)
# -     scaler.step(optimizer)
# +     nn.utils.clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
# +     optimizer.step()
# +     scaler.step(torch.optim.SGD(model.parameters(), lr=1e-9))
# %% wrong (steps anyway): who looks for inf
# -     scaler.step(optimizer)
# +     scaler.step(optimizer)
# +     if not torch.cat([p.grad.flatten() for p in model.parameters()]).isfinite().all():
# +         optimizer.step()
# %% wrong (steps on what is left of inf): such a step must be skipped
# -     scaler.step(optimizer)
# +     scaler.step(optimizer)
# +     if not torch.cat([p.grad.flatten() for p in model.parameters()]).isfinite().all():
# +         for p in model.parameters():
# +             p.grad.nan_to_num_(1.0, 1.0, 1.0)
# +         optimizer.step()
# %% wrong (forgets to update): the scaler was never told that the step is over
# -     scaler.update()
# + 
# %% wrong (sets the scale): who finds the next one
# scaler.update() → scaler.update(scaler.get_scale())
# %% wrong (returns the scaled loss): that is 1024 times the loss
# loss.item() → loss.item() * scaler.get_scale()
# %% wrong (returns the sum): the batch's loss was
# loss.item() → loss.item() * len(x)
# %% wrong (returns a tensor): the loss is wanted, as a float
# loss.item() → loss.detach()
