# %% wrong (hands out all channels): of the 1560 numbers in x, and computes with
# group.scatter(x, dim=1, equal=True) → [x_i.chunk(len(group), 1)[i] for i, x_i in enumerate(group.broadcast(x))]
# %% wrong (sends the whole weight): numbers in the weight, and computes with
# group.scatter(conv.weight, dim=1, equal=True) → [w.chunk(len(group), 1)[i] for i, w in enumerate(group.broadcast(conv.weight))]
# %% wrong (adds the bias on every device): the bias is in it 2 times
# ys[0] += conv.bias.detach().view(-1, 1, 1) → ys = [y + b.view(-1, 1, 1) for y, b in zip(ys, group.broadcast(conv.bias))]
# %% wrong (forgets the bias): without the bias
# ys[0] += conv.bias.detach().view(-1, 1, 1) → pass
# %% wrong (forgets the padding): Mismatch in shape
# padding=conv.padding → padding=0
# %% wrong (takes the first of stride and padding): Mismatch in shape
# stride=conv.stride, padding=conv.padding → stride=conv.stride[0], padding=conv.padding[0]
# %% wrong (mixes up the shards): each of its own part of the input
# zip(xs, weights) → zip(xs, group.scatter(conv.weight, dim=1)[::-1])
# %% wrong (sums the input gradient): whose gradient was added up?
# return ys[0], grad_x → return ys[0], grad_x * len(group)
# %% wrong (joins the input gradient in reverse): joined in order
# for x_i in xs], dim=1 → for x_i in xs[::-1]], dim=1
# %% wrong (leaves the input gradient in parts): not a tensor
# group.gather([x_i.grad for x_i in xs], dim=1) → [x_i.grad for x_i in xs]
# %% wrong (averages the weight's gradients): this device's own part of the input
# [w.grad for w in weights] → [w.grad / len(group) for w in weights]
# %% wrong (sums the bias gradient over samples only): bias_grad: it has shape
# sum(dim=(0, 2, 3)) → sum(dim=0)
# %% wrong (averages the bias gradient over positions): over which dims
# sum(dim=(0, 2, 3)) → sum(dim=0).mean(dim=(1, 2))
# %% wrong (sums the bias gradient over devices): once for each device
# sum(dim=(0, 2, 3)) → sum(dim=(0, 2, 3)) * len(group)
# %% wrong (leaves the input gradient on the last device): grad_x is on device 1, and belongs on device 0
# return ys[0], grad_x → return ys[0], group.send(grad_x, 0, len(group) - 1)
# %% wrong (adds the bias without a message): ` mixes tensors of devices 0 and 1
# ys[0] += conv.bias.detach().view(-1, 1, 1) → ys = [y + conv.bias.detach().view(-1, 1, 1) / len(group) for y in ys]
# %% wrong (puts the gradient into the layer): conv.weight.grad was changed
# return ys[0] → conv.weight.grad = group.gather([w.grad for w in weights], dim=1); return ys[0]
# %% wrong (freezes x in the end): where the input requires gradients
# return ys[0] → x.requires_grad_(False); return ys[0]
# %% wrong (makes a tensor on the CPU): fails on 3 GPUs at
# F.conv2d(x_i, w, → torch.zeros(len(w), 1, 1, dtype=w.dtype) + F.conv2d(x_i, w,

# %% right (by hand)
def conv_by_input_channels(group, conv, x, grad_y):
    weights = group.scatter(conv.weight, dim=1, equal=True)
    xs, grads = group.scatter(x, dim=1, equal=True), group.broadcast(grad_y)
    summands = [F.conv2d(x_i, w, None, conv.stride, conv.padding) for x_i, w in zip(xs, weights)]
    y = sum(group.send(s, i, 0) for i, s in enumerate(summands)) + conv.bias.detach()[:, None, None]
    grad_ws = [nn.grad.conv2d_weight(x_i, w.shape, g, conv.stride, conv.padding) for x_i, w, g in zip(xs, weights, grads)]
    grad_xs = [nn.grad.conv2d_input(x_i.shape, w, g, conv.stride, conv.padding) for x_i, w, g in zip(xs, weights, grads)]
    return [y, group.gather(grad_xs, dim=1), tuple(grad_ws), grad_y.flatten(2).sum((0, 2))]
