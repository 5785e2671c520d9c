# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %%
# Exercise 4.1
def amp_step(model, optimizer, scaler, x, y, max_norm):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # max_norm is meant for the true gradient
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


# %%
# Exercise 4.2
def largest_scale(gradients):
    largest = max(g.abs().max().item() for g in gradients)
    if not all(g.isfinite().all() for g in gradients):
        return None
    return 2.0 ** math.floor(math.log2(torch.finfo(torch.float16).max / largest))


# %%
# Exercise 4.3
def step_ms(phases_ms, num_workers, prefetching):
    load, copy = phases_ms["load"], phases_ms["copy"]
    compute = sum(phases_ms.values()) - load - copy
    if num_workers == 0:
        return load + copy + compute
    if prefetching:
        return max(load / num_workers, copy, compute)
    return max(load / num_workers, copy + compute)  # the slowest sets the pace
