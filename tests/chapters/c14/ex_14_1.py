# %% wrong (sums plain means): each worker's mean counts as if its images were the whole batch
# loss * len(x) / batch_size → loss
# %% wrong (averages over workers): worth as much
# loss * len(x) / batch_size → loss / 2
# %% wrong (sums over images): of a sum over images
# loss * len(x) / batch_size → loss * len(x)
# %% wrong (divides twice): made twice
# loss * len(x) / batch_size → loss / batch_size
# %% wrong (accumulates): still in the gradient
#     model.zero_grad() →     pass
# %% wrong (receives beside the model): come into the model
#     nn.utils.vector_to_parameters(flat, parameters) →     pass
# %% wrong (pushes parameters): are gradients pushed, or parameters?
# gradient = torch.cat([p.grad.flatten() for p in parameters]) → gradient = flat
# %% wrong (pushes a step downhill): is the gradient's sign changed
# messages.send(gradient[begin:end], server) → messages.send(-gradient[begin:end], server)
# %% wrong (a rate of its own): no mistake known here
# messages.send(gradient[begin:end], server) → messages.send(0.1 * gradient[begin:end], server)
# %% wrong (pushes nothing to the second server): 0 bytes were sent to server 1, whose range (0, 61)
# -     for server, (begin, end) in ranges.items():
# -         messages.send(gradient[begin:end], server)
# +     messages.send(gradient[61:], 0)
# %% wrong (pulls from the first server alone): 0 bytes were received from server 1
# -     for server, (begin, end) in ranges.items():
# -         messages.recv(flat[begin:end], server)
# +     messages.recv(flat[61:], 0)
# %% wrong (in alphabetical order): in the alphabetical order
# list(model.parameters()) → [p for _, p in sorted(model.named_parameters())]
# %% wrong (in the order of layers): in which layers are used
# list(model.parameters()) → [*model.first.parameters(), *model.last.parameters()]
# %% endless (pulls twice): in recv
# messages.recv(flat[begin:end], server) → [messages.recv(flat[begin:end], server) for _ in range(2)]
# %% wrong (pushes before it pulls): of the parameters of the step before
def work_step(model, x, y, batch_size, ranges):
    parameters = list(model.parameters())
    flat = nn.utils.parameters_to_vector(parameters).detach()
    model.zero_grad()
    (F.cross_entropy(model(x), y) * len(x) / batch_size).backward()
    gradient = torch.cat([p.grad.flatten() for p in parameters])
    for server, (begin, end) in ranges.items():
        messages.send(gradient[begin:end], server)
        messages.recv(flat[begin:end], server)
    nn.utils.vector_to_parameters(flat, parameters)
# %% wrong (in the order of the dict): end to end in the order of the dict
def work_step(model, x, y, batch_size, ranges):
    parameters, pieces = list(model.parameters()), []
    for server, (begin, end) in ranges.items():
        pieces.append(torch.empty(end - begin, dtype=parameters[0].dtype))
        messages.recv(pieces[-1], server)
    nn.utils.vector_to_parameters(torch.cat(pieces), parameters)
    model.zero_grad()
    (F.cross_entropy(model(x), y) * len(x) / batch_size).backward()
    gradient = torch.cat([p.grad.flatten() for p in parameters])
    for (server, (begin, end)), piece in zip(ranges.items(), gradient.split([len(piece) for piece in pieces])):
        messages.send(piece, server)
# %% right (by torch.autograd.grad, key by key)
def work_step(model, x, y, batch_size, ranges):
    flat = torch.empty(sum(p.numel() for p in model.parameters()), dtype=x.dtype)
    for server in sorted(ranges):
        begin, end = ranges[server]
        buffer = torch.empty(end - begin, dtype=x.dtype)
        messages.recv(buffer, server)
        flat[begin:end] = buffer
    parameters = [p for _, p in model.named_parameters()]
    with torch.no_grad():
        for p, piece in zip(parameters, flat.split([p.numel() for p in parameters])):
            p.copy_(piece.view_as(p))
    loss = F.cross_entropy(model(x), y, reduction="sum") / batch_size
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)])
    for server, (begin, end) in sorted(ranges.items(), reverse=True):
        messages.send(gradient[begin:end], server)
# %% right (by torch.distributed, all at once; takes what is in the dict)
def work_step(model, x, y, batch_size, ranges):
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    works = [dist.irecv(flat[begin:end], server) for server, (begin, end) in ranges.items()]
    for work in works:
        work.wait()
    nn.utils.vector_to_parameters(flat, model.parameters())
    for p in model.parameters():
        p.grad = None
    (F.cross_entropy(model(x), y) * (len(x) / batch_size)).backward()
    gradient = nn.utils.parameters_to_vector([p.grad for p in model.parameters()])
    while ranges:
        server, (begin, end) = ranges.popitem()
        dist.send(gradient[begin:end].contiguous(), server)
