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
# messages.recv(p, owner[name]) → messages.recv(p.clone(), owner[name])
# %% wrong (pushes parameters): are gradients pushed, or parameters?
# messages.send(p.grad, owner[name]) → messages.send(p, owner[name])
# %% wrong (pushes a step downhill): is the gradient's sign changed
# messages.send(p.grad, owner[name]) → messages.send(-p.grad, owner[name])
# %% wrong (a rate of its own): which parameters, which gradient and which weight
# messages.send(p.grad, owner[name]) → messages.send(0.1 * p.grad, owner[name])
# %% right (by torch.autograd.grad)
def work_step(model, x, y, batch_size, owner):
    names, parameters = zip(*model.named_parameters())
    for name, p in zip(names, parameters):
        buffer = torch.empty_like(p)
        messages.recv(buffer, owner[name])
        with torch.no_grad():
            p.copy_(buffer)
    loss = F.cross_entropy(model(x), y, reduction="sum") / batch_size
    for name, gradient in zip(names, torch.autograd.grad(loss, parameters)):
        messages.send(gradient, owner[name])
