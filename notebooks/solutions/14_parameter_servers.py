# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %%
# Exercise 14.1
def work_step(model, x, y, batch_size, ranges):
    parameters = list(model.parameters())
    flat = nn.utils.parameters_to_vector(parameters).detach()
    for server, (begin, end) in ranges.items():
        messages.recv(flat[begin:end], server)
    nn.utils.vector_to_parameters(flat, parameters)
    model.zero_grad()
    loss = F.cross_entropy(model(x), y)
    (loss * len(x) / batch_size).backward()  # this share of the mean
    gradient = torch.cat([p.grad.flatten() for p in parameters])
    for server, (begin, end) in ranges.items():
        messages.send(gradient[begin:end], server)


# %%
# Exercise 14.2
def may_begin(step, clocks, tau, spared):
    for name, value in {"tau": tau, "spared": spared}.items():
        if value < 0:
            raise ValueError(f"{name} is a number from 0 up, not {value}")
    counted = sorted(clocks.values())[spared:]
    return not counted or step - counted[0] <= tau


# %%
# Exercise 14.3
def bytes_in(key_bytes, owner, used):
    entered = [0] * len(used)
    for worker, keys in enumerate(used):
        for key in keys:
            if owner[key] != worker:
                entered[worker] += key_bytes[key]  # pulled
                entered[owner[key]] += key_bytes[key]  # pushed
    return entered


# %%
# Exercise 14.4
def outer_step(model, anchor, outer):
    num_bytes = 0
    for start, p in zip(anchor, model.parameters()):
        mean = p.detach().clone()
        dist.all_reduce(mean)
        num_bytes += mean.nbytes
        start.grad = start.detach() - mean / dist.get_world_size()
    outer.step()
    with torch.no_grad():
        for start, p in zip(anchor, model.parameters()):
            p.copy_(start)
    return num_bytes
