# %% wrong (adds the bias on every device): the bias is in it 2 times
# ys[0] += linear.bias.detach() → ys = [y + b for y, b in zip(ys, group.broadcast(linear.bias))]
# %% wrong (forgets the bias): without the bias
# ys[0] += linear.bias.detach() → pass
# %% wrong (forgets the all reduce): are the devices' summands added up
# group.all_reduce(ys) → pass
# %% wrong (all reduces the gradients of the bias): something that comes of grad_ys was sent
# return ys, → parts = [g.sum(0) / len(group) for g in grad_ys]; group.all_reduce(parts); return ys,
# %% wrong (sums the bias gradient over devices): once for each device
# grad_ys[0].sum(dim=0) → grad_ys[0].sum(dim=0) * len(group)
# %% wrong (averages the bias gradient): a mean over devices
# grad_ys[0].sum(dim=0) → grad_ys[0].sum(dim=0) / len(group)
# %% wrong (averages the bias gradient over samples): over which dims
# grad_ys[0].sum(dim=0) → grad_ys[0].mean(dim=0)
# %% wrong (all reduces the output gradients): was it summed over devices that hold the same
# group.all_reduce(ys) → group.all_reduce(ys); grad_ys = [g.clone() for g in grad_ys]; group.all_reduce(grad_ys)
# %% wrong (all reduces the input gradients): from this device's shard alone
# return ys, → group.all_reduce([x_i.grad for x_i in xs]); return ys,
# %% wrong (averages the weight's gradients): this device's own part of the input
# [w.grad for w in weights] → [w.grad / len(group) for w in weights]
# %% wrong (moves the output twice): is the output sent twice
# return ys, → return group.broadcast(ys[0]),
# %% wrong (clears the layer's gradients): gradients kept from an earlier step: linear.weight.grad was changed
# return ys, → linear.zero_grad(); return ys,
# %% right (broadcasts the bias, and adds it after the sum)
# ys[0] += linear.bias.detach() → pass
# group.all_reduce(ys) → group.all_reduce(ys); ys = [y + b for y, b in zip(ys, group.broadcast(linear.bias.detach()))]
# %% right (shares the bias out, and sums on the last device)
def row_parallel(group, linear, xs, grad_ys):
    weights, n, last = group.scatter(linear.weight, dim=1), len(group), len(group) - 1
    ys = [F.linear(x, w, b) for x, w, b in zip(xs, weights, group.broadcast(linear.bias / n))]
    total = sum(group.send(y, i, last) for i, y in enumerate(ys))
    grad_xs = [g @ w for g, w in zip(grad_ys, weights)]
    weight_grads = [torch.einsum("bo,bi->oi", g, x) for g, x in zip(grad_ys, xs)]
    return tuple(group.send(total, last, i) for i in range(n)), grad_xs, weight_grads, grad_ys[last].sum(0)
