# %% wrong (forgets the all reduce): it is device 0's own summand
# group.all_reduce(grad_xs) → pass
# %% wrong (all reduces twice): so something was added up twice
# group.all_reduce(grad_xs) → group.all_reduce(grad_xs), group.all_reduce(grad_xs)
# %% wrong (averages): a mean over devices
# return y, grad_xs → return y, [g / len(group) for g in grad_xs]
# %% wrong (adds its own once more): which summands are in it?
# return y, grad_xs → return y, [g + own @ w.detach() for g, own, w in zip(grad_xs, group.scatter(grad_y, dim=1), weights)]
# %% wrong (names one gradient for all): grad_xs[1] is on device 0, and belongs on device 1
# return y, grad_xs → return y, [grad_xs[0]] * len(group)
# %% wrong (forgets the bias): without the bias
# w, b) for → w) for
# %% wrong (joins in reverse): in the devices' order
# gather(ys → gather(ys[::-1]
# %% wrong (generates the shards): not a list or tuple of one tensor from each device
# [w.grad for w in weights] → (w.grad for w in weights)
# %% wrong (hands out one part of the gradient): it is device 0's part
# group.scatter(grad_y, dim=1, equal=True) → group.broadcast(grad_y.chunk(len(group), 1)[0])
# %% wrong (forgets the gradient): is the gradient that this device was given
# y_i.backward(grad) → y_i.sum().backward()
# %% wrong (sends the whole weight): and its shard has 180
# group.scatter(linear.weight, dim=0, equal=True) → [w.chunk(len(group))[i] for i, w in enumerate(group.broadcast(linear.weight))]
# %% wrong (takes the bias without a message): b) for x_i, w, b in zip(xs, weights, biases)]` mixes tensors of devices 0 and 1
# group.scatter(linear.bias, dim=0, equal=True) → linear.bias.chunk(len(group))
# %% wrong (clears the layer's gradients): gradients kept from an earlier step: linear.weight.grad was changed
# return y → linear.zero_grad(); return y
# %% right (by formula)
def column_parallel(group, linear, x, grad_y):
    group.reset()  # as the chapter does before it counts
    n, last = len(group), len(group) - 1
    weights = [group.send(w.clone(), 0, i) for i, w in enumerate(linear.weight.detach().chunk(n))]
    biases = [group.send(b.clone(), 0, i) for i, b in enumerate(linear.bias.detach().chunk(n))]
    xs, grads = group.broadcast(x), group.broadcast(grad_y)  # the whole gradient everywhere: more than is needed
    grads = [g.chunk(n, 1)[i] for i, g in enumerate(grads)]
    y, *_ = group.all_gather([x_i @ w.T + b for x_i, w, b in zip(xs, weights, biases)], dim=1)
    total = sum(group.send(g @ w, i, last) for i, (g, w) in enumerate(zip(grads, weights)))
    grad_xs = tuple(group.send(total, last, i) for i in range(n))
    return [y, grad_xs, [g.T @ x_i for g, x_i in zip(grads, xs)], [g.sum(0) for g in grads]]
