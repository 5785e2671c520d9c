# %% wrong (hands out all channels): of the 1560 numbers in x, and computes with
# group.scatter(x, dim=1, equal=True) → [x_i.chunk(len(group), 1)[i] for i, x_i in enumerate(group.broadcast(x))]
# %% wrong (sends the whole weight): numbers in the weight, and computes with
# group.scatter(conv.weight, dim=1, equal=True) → [w.chunk(len(group), 1)[i] for i, w in enumerate(group.broadcast(conv.weight))]
# %% wrong (adds the bias on every device): the bias is in it 2 times
# conv.bias.detach().view(-1, 1, 1) + sum(group.send(s, i, 0) for i, s in enumerate(summands)) → sum(group.send(s + b.view(-1, 1, 1), i, 0) for i, (s, b) in enumerate(zip(summands, group.broadcast(conv.bias))))
# %% wrong (sums the input gradient): whose gradient was added up?
# return y, grad_x → return y, grad_x * len(group)
# %% wrong (joins the input gradient in reverse): joined in order
# for x_i in xs], dim=1 → for x_i in xs[::-1]], dim=1
# %% wrong (forgets the bias): without the bias
# conv.bias.detach().view(-1, 1, 1) + sum( → sum(
# %% wrong (keeps device 0's summand): summands added up
# sum(group.send(s, i, 0) for i, s in enumerate(summands)) → summands[0].detach()
# %% wrong (averages the bias gradient): over which dims
# grad_y.sum(dim=(0, 2, 3)) → grad_y.mean(dim=(0, 2, 3))
# %% right (all-reduces the summands)
# sum(group.send(s, i, 0) for i, s in enumerate(summands)) → (ys := [s.detach() for s in summands], group.all_reduce(ys))[0][0]
# %% right (adds the bias to device 0's summand)
# conv.bias.detach().view(-1, 1, 1) + sum( → sum(
# F.conv2d(x_i, w, stride → F.conv2d(x_i, w, None if i else conv.bias.detach(), stride
# for x_i, w in zip(xs, weights) → for i, (x_i, w) in enumerate(zip(xs, weights))
# %% right (by hand)
def conv_by_input_channels(group, conv, x, grad_y):
    weights = group.scatter(conv.weight, dim=1, equal=True)
    xs, grads = group.scatter(x, dim=1, equal=True), group.broadcast(grad_y)
    summands = [F.conv2d(x_i, w, None, conv.stride, conv.padding) for x_i, w in zip(xs, weights)]
    y = sum(group.send(s, i, 0) for i, s in enumerate(summands)) + conv.bias.detach()[:, None, None]
    grad_ws = [nn.grad.conv2d_weight(x_i, w.shape, g, conv.stride, conv.padding) for x_i, w, g in zip(xs, weights, grads)]
    grad_xs = [nn.grad.conv2d_input(x_i.shape, w, g, conv.stride, conv.padding) for x_i, w, g in zip(xs, weights, grads)]
    return [y, group.gather(grad_xs, dim=1), tuple(grad_ws), grad_y.flatten(2).sum((0, 2))]
