# %% wrong (away from the mean): which sign has it
# start.detach() - mean / dist.get_world_size() → mean / dist.get_world_size() - start.detach()
# %% wrong (a sum): is the sum over ranks divided
# mean / dist.get_world_size() → mean
# %% wrong (adds to the old gradient): of the last meeting is still in it
#         start.grad = start.detach() - mean / dist.get_world_size() →         new = start.detach() - mean / dist.get_world_size(); start.grad = new if start.grad is None else start.grad + new
# %% wrong (no messages): by what it alone had moved
#         dist.all_reduce(mean) →         mean *= dist.get_world_size()
# %% wrong (forgets the model): own parameters do not hold the anchor's values
#             p.copy_(start) →             pass
# %% wrong (replaces the parameters): has other parameters now
#             p.copy_(start) →             model.load_state_dict(dict(zip(model.state_dict(), anchor)), assign=True)
# %% wrong (no outer step): the anchor has not moved at all
#     outer.step() →     pass
# %% wrong (half of the gradient): none of the mistakes known here
# start.detach() - mean / → 0.5 * start.detach() - 0.5 * mean /
# %% wrong (counts numbers): many numbers are all-reduced, not bytes
# num_bytes += mean.nbytes → num_bytes += mean.numel()
# %% wrong (takes 4 bytes a number): have 8 bytes each
# num_bytes += mean.nbytes → num_bytes += 4 * mean.numel()
# %% wrong (all ranks'): of all ranks together
# num_bytes += mean.nbytes → num_bytes += dist.get_world_size() * mean.nbytes
# %% wrong (the last tensor's): all-reduced last
# num_bytes += mean.nbytes → num_bytes = mean.nbytes
# %% wrong (what goes round a ring): in a ring
# return num_bytes → return 2 * (dist.get_world_size() - 1) * num_bytes // dist.get_world_size()
# %% wrong (returns nothing): is it returned, or only printed
# return num_bytes → print(num_bytes)
# %% wrong (averages instead): who takes a step with `outer`
def outer_step(model, anchor, outer):
    with torch.no_grad():
        for start, p in zip(anchor, model.parameters()):
            dist.all_reduce(p)
            p /= dist.get_world_size()
            start.copy_(p)
    return sum(p.nbytes for p in anchor)
# %% wrong (a new optimizer each time): momentum is lost between
def outer_step(model, anchor, outer):
    options = {name: outer.defaults[name] for name in ("lr", "momentum", "nesterov")}
    again = torch.optim.SGD(anchor, **options)
    for start, p in zip(anchor, model.parameters()):
        start.grad = p.detach().clone()
        dist.all_reduce(start.grad)
        start.grad = start - start.grad / dist.get_world_size()
    again.step()
    with torch.no_grad():
        for start, p in zip(anchor, model.parameters()):
            p.copy_(start)
    return sum(p.nbytes for p in anchor)
# %% wrong (new anchors): holds other tensors now
def outer_step(model, anchor, outer):
    for start, p in zip(anchor, model.parameters()):
        start.grad = p.detach().clone()
        dist.all_reduce(start.grad)
        start.grad = start - start.grad / dist.get_world_size()
    outer.step()
    with torch.no_grad():
        for start, p in zip(anchor, model.parameters()):
            p.copy_(start)
    anchor[:] = [p.detach().clone() for p in model.parameters()]
# %% wrong (gathers all): each is to be all-reduced once
def outer_step(model, anchor, outer):
    for start, p in zip(anchor, model.parameters()):
        everyone = [torch.empty_like(p) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, p.detach())
        start.grad = start - sum(everyone) / len(everyone)
    outer.step()
    with torch.no_grad():
        for start, p in zip(anchor, model.parameters()):
            p.copy_(start)
# %% right (the mean of differences, in one message)
def outer_step(model, anchor, outer):
    gone = torch.cat([(start - p).flatten() for start, p in zip(anchor, model.parameters())]).detach()
    dist.all_reduce(gone)
    pieces = (gone / dist.get_world_size()).split([start.numel() for start in anchor])
    outer.zero_grad()
    for start, piece in zip(anchor, pieces):
        start.grad = piece.view_as(start)
    outer.step()
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(anchor), model.parameters())
    return gone.nbytes
# %% right (averages the model first)
def outer_step(model, anchor, outer):
    with torch.no_grad():
        for start, p in zip(anchor, model.parameters()):
            dist.all_reduce(p)
            p /= dist.get_world_size()
            start.grad = start - p
    outer.step()
    for start, p in zip(anchor, model.parameters()):
        p.data.copy_(start)
    return sum(p.nbytes for p in model.parameters())
# %% right (with a ring of its own)
def outer_step(model, anchor, outer):
    for start, p in zip(anchor, model.parameters()):
        mean = p.detach().clone()
        ring.all_reduce(mean)
        start.grad = start - mean / dist.get_world_size()
    outer.step()
    for start, p in zip(anchor, model.parameters()):
        p.data = start.clone()
    return torch.tensor(sum(p.numel() * p.element_size() for p in anchor))
