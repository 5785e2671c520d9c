# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %%
# Exercise 14.1
def work_step(model, x, y, batch_size, owner):
    for name, p in model.named_parameters():
        messages.recv(p, owner[name])
    model.zero_grad()
    loss = F.cross_entropy(model(x), y)
    (loss * len(x) / batch_size).backward()  # this share of the mean
    for name, p in model.named_parameters():
        messages.send(p.grad, owner[name])


# %%
# Exercise 14.2
def may_begin(step, clocks, tau):
    if tau < 0:
        raise ValueError(f"tau is a number of steps, from 0 up, not {tau}")
    return step - min(clocks.values()) <= tau


# %%
# Exercise 14.3
def bytes_in(key_bytes, num_servers, num_workers):
    if num_servers > len(key_bytes):
        raise ValueError(f"{num_servers} servers cannot share {len(key_bytes)} keys")
    held = [0] * num_servers
    for num_bytes in sorted(key_bytes, reverse=True):
        held[held.index(min(held))] += num_bytes
    total = sum(key_bytes)
    ring = 2 * (num_workers - 1) / num_workers * total
    return {"server": num_workers * max(held), "worker": total, "ring": ring}


# %%
# Exercise 14.4
def outer_step(model, anchor, outer):
    for start, p in zip(anchor, model.parameters()):
        mean = p.detach().clone()
        dist.all_reduce(mean)
        start.grad = start.detach() - mean / dist.get_world_size()
    outer.step()
    with torch.no_grad():
        for start, p in zip(anchor, model.parameters()):
            p.copy_(start)
