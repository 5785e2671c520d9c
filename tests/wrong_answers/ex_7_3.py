"""Exercise 7.3: answers that its check must refuse, each with words from the reason that it must give."""

import copy

import torch
import torch.nn.functional as F


def leaves(tensors):
    return [t.detach().requires_grad_() for t in tensors]


def by_input_channels(group, conv, x, grad_y, num_biases=1, stride=True, padding=True, order=1):
    """The right answer, or one with a fault; `num_biases` devices add the bias."""
    xs, weights = leaves(group.scatter(x, dim=1)), leaves(group.scatter(conv.weight, dim=1)[::order])
    settings = {"stride": conv.stride if stride else 1, "padding": conv.padding if padding else 0}
    summands = [F.conv2d(x_i, w, **settings) for x_i, w in zip(xs, weights)]
    ys = [y.detach() for y in summands]
    for y in ys[:num_biases]:
        y += conv.bias.detach().view(-1, 1, 1)
    group.all_reduce(ys)
    for y, grad in zip(summands, group.broadcast(grad_y)):
        y.backward(grad)
    grad_x = group.gather([x_i.grad for x_i in xs], dim=1)
    return ys[0], grad_x, [w.grad for w in weights], grad_y.sum((0, 2, 3))


def adds_the_bias_on_every_device(group, conv, x, grad_y):
    return by_input_channels(group, conv, x, grad_y, num_biases=len(group))


def forgets_the_bias(group, conv, x, grad_y):
    return by_input_channels(group, conv, x, grad_y, num_biases=0)


def forgets_the_stride(group, conv, x, grad_y):
    return by_input_channels(group, conv, x, grad_y, stride=False)


def forgets_the_padding(group, conv, x, grad_y):
    return by_input_channels(group, conv, x, grad_y, padding=False)


def cuts_output_channels(group, conv, x, grad_y):
    xs, weights = leaves(group.broadcast(x)), leaves(group.scatter(conv.weight))
    biases = leaves(group.scatter(conv.bias))
    ys = [F.conv2d(x_i, w, b, conv.stride, conv.padding) for x_i, w, b in zip(xs, weights, biases)]
    for y, grad in zip(ys, group.scatter(grad_y, dim=1)):
        y.backward(grad)
    grad_xs = [x_i.grad for x_i in xs]
    group.all_reduce(grad_xs)
    return group.gather(ys, dim=1), grad_xs[0], [w.grad for w in weights], grad_y.sum((0, 2, 3))


def never_adds_up(group, conv, x, grad_y):
    _, *rest = by_input_channels(group, conv, x, grad_y)
    x_0, weight_0 = (t.detach().chunk(len(group), 1)[0] for t in (x, conv.weight))
    return F.conv2d(x_0, weight_0, conv.bias.detach(), conv.stride, conv.padding), *rest


def mixes_up_the_shards(group, conv, x, grad_y):
    return by_input_channels(group, conv, x, grad_y, order=-1)


def sums_the_input_gradient(group, conv, x, grad_y):
    y, grad_x, *rest = by_input_channels(group, conv, x, grad_y)
    return y, grad_x * len(group), *rest


def joins_the_input_gradient_in_reverse(group, conv, x, grad_y):
    y, grad_x, *rest = by_input_channels(group, conv, x, grad_y)
    return y, torch.cat(grad_x.chunk(len(group), 1)[::-1], 1), *rest


def leaves_the_input_gradient_in_parts(group, conv, x, grad_y):
    y, grad_x, *rest = by_input_channels(group, conv, x, grad_y)
    return y, list(grad_x.chunk(len(group), 1)), *rest


def sums_the_bias_gradient_over_samples_only(group, conv, x, grad_y):
    *rest, _ = by_input_channels(group, conv, x, grad_y)
    return *rest, grad_y.sum(0)


def sums_the_bias_gradient_over_devices(group, conv, x, grad_y):
    *rest, bias_grad = by_input_channels(group, conv, x, grad_y)
    return *rest, len(group) * bias_grad


def sends_the_whole_weight(group, conv, x, grad_y):
    group.broadcast(conv.weight)
    return by_input_channels(group, conv, x, grad_y)


def never_talks(group, conv, x, grad_y):
    (whole,) = leaves([x])
    y = conv(whole)
    y.backward(grad_y)
    return y, whole.grad, list(conv.weight.grad.chunk(len(group), 1)), conv.bias.grad


def adds_the_bias_without_a_message(group, conv, x, grad_y):
    weights, grads = group.scatter(conv.weight, dim=1), group.broadcast(grad_y)
    xs = leaves(group.scatter(x, dim=1))
    bias = conv.bias.detach() / len(group)
    ys = [F.conv2d(x_i, w, bias, conv.stride, conv.padding) for x_i, w in zip(xs, weights)]
    for y, grad in zip(ys, grads):
        y.backward(grad)
    grad_ws = [torch.nn.grad.conv2d_weight(x_i, w.shape, g, conv.stride, conv.padding) for x_i, w, g in zip(xs, weights, grads)]
    ys = [y.detach() for y in ys]
    group.all_reduce(ys)
    return ys[0], group.gather([x_i.grad for x_i in xs], dim=1), [g.detach() for g in grad_ws], grad_y.sum((0, 2, 3))


def goes_back_without_a_message(group, conv, x, grad_y):
    xs, weights = leaves(group.scatter(x, dim=1)), leaves(group.scatter(conv.weight, dim=1))
    summands = [F.conv2d(x_i, w, None, conv.stride, conv.padding) for x_i, w in zip(xs, weights)]
    ys = [y.detach() for y in summands]
    ys[0] += conv.bias.detach().view(-1, 1, 1)
    group.all_reduce(ys)  # as many bytes more than a sum on number 0 as a broadcast of grad_y
    for y in summands:
        y.backward(grad_y)
    grad_x = group.gather([x_i.grad for x_i in xs], dim=1)
    return ys[0], grad_x, [w.grad for w in weights], grad_y.sum((0, 2, 3))


def hands_out_all_channels(group, conv, x, grad_y):
    group.broadcast(x)
    return by_input_channels(group, conv, x, grad_y)


def takes_the_first_of_stride_and_padding(group, conv, x, grad_y):
    square = copy.copy(conv)
    square.stride, square.padding = conv.stride[:1] * 2, conv.padding[:1] * 2
    return by_input_channels(group, square, x, grad_y)


WRONG = [
    (adds_the_bias_without_a_message, "an operation mixes tensors of devices 0 and 1"),
    (goes_back_without_a_message, "an operation mixes tensors of devices 0 and 1"),
    (hands_out_all_channels, "did a device receive weights, channels or summands"),
    (takes_the_first_of_stride_and_padding, "Mismatch in shape"),
    (adds_the_bias_on_every_device, "the bias is in it 2 times"),
    (forgets_the_bias, "without the bias"),
    (forgets_the_stride, "Mismatch in shape"),
    (forgets_the_padding, "Mismatch in shape"),
    (cuts_output_channels, "weight_grads[0] has shape (3, 26, 3, 3)"),
    (never_adds_up, "are the devices' summands added up"),
    (mixes_up_the_shards, "each of its own part of the input"),
    (sums_the_input_gradient, "2 times too large"),
    (joins_the_input_gradient_in_reverse, "joined in order"),
    (leaves_the_input_gradient_in_parts, "one whole tensor, on number 0"),
    (sums_the_bias_gradient_over_samples_only, "bias_grad has shape"),
    (sums_the_bias_gradient_over_devices, "once for each device"),
    (sends_the_whole_weight, "did a device receive weights"),
    (never_talks, "through the group, and cannot do with fewer"),
]


def by_hand(group, conv, x, grad_y):
    weights = group.scatter(conv.weight, dim=1, equal=True)
    xs, grads = group.scatter(x, dim=1, equal=True), group.broadcast(grad_y)
    summands = [F.conv2d(x_i, w, None, conv.stride, conv.padding) for x_i, w in zip(xs, weights)]
    y = sum(group.send(s, i, 0) for i, s in enumerate(summands)) + conv.bias.detach()[:, None, None]
    grad_ws = [torch.nn.grad.conv2d_weight(x_i, w.shape, g, conv.stride, conv.padding) for x_i, w, g in zip(xs, weights, grads)]
    grad_xs = [torch.nn.grad.conv2d_input(x_i.shape, w, g, conv.stride, conv.padding) for x_i, w, g in zip(xs, weights, grads)]
    return [y, group.gather(grad_xs, dim=1), tuple(grad_ws), grad_y.flatten(2).sum((0, 2))]


def with_modules(group, conv, x, grad_y):
    parts, xs = [], leaves(group.scatter(x, dim=1))
    for i, w in enumerate(group.scatter(conv.weight, dim=1)):
        settings = conv.kernel_size, conv.stride, conv.padding
        parts.append(torch.nn.Conv2d(w.shape[1], w.shape[0], *settings, bias=i == 0, device=group.devices[i], dtype=w.dtype))
        parts[i].weight.data = w
    parts[0].bias.data = conv.bias.data.clone()
    summands = [part(x_i) for part, x_i in zip(parts, xs)]
    ys = [y.detach() for y in summands]
    group.all_reduce(ys)
    torch.autograd.backward(summands, group.broadcast(grad_y))
    return ys[0], group.gather([x_i.grad for x_i in xs], dim=1), [part.weight.grad for part in parts], parts[0].bias.grad


RIGHT = [by_input_channels, by_hand, with_modules]
