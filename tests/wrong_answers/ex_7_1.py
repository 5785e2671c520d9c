"""Exercise 7.1: answers that its check must refuse, each with words from the reason that it must give."""

import torch
import torch.nn.functional as F


def leaves(tensors):
    return [t.detach().requires_grad_() for t in tensors]


def by_columns(group, linear, x, grad_y, all_reduce=True, with_bias=True, whole_weight=False):
    xs = leaves(group.broadcast(x))
    if whole_weight:
        weights = [w.chunk(len(group))[i].clone() for i, w in enumerate(group.broadcast(linear.weight))]
    else:
        weights = group.scatter(linear.weight, dim=0)
    weights, biases = leaves(weights), leaves(group.scatter(linear.bias))
    ys = [F.linear(x_i, w, b if with_bias else None) for x_i, w, b in zip(xs, weights, biases)]
    for y, grad in zip(ys, group.scatter(grad_y, dim=1)):
        y.backward(grad)
    grad_xs = [x_i.grad for x_i in xs]
    if all_reduce:
        group.all_reduce(grad_xs)
    bias_grads = [torch.zeros_like(b) if b.grad is None else b.grad for b in biases]
    return group.gather(ys, dim=1), grad_xs, [w.grad for w in weights], bias_grads


def forgets_the_all_reduce(group, linear, x, grad_y):
    return by_columns(group, linear, x, grad_y, all_reduce=False)


def forgets_the_bias(group, linear, x, grad_y):
    return by_columns(group, linear, x, grad_y, with_bias=False)


def sends_the_whole_weight(group, linear, x, grad_y):
    return by_columns(group, linear, x, grad_y, whole_weight=True)


def sends_the_whole_bias(group, linear, x, grad_y):
    group.broadcast(linear.bias)
    return by_columns(group, linear, x, grad_y)


def takes_the_bias_without_a_message(group, linear, x, grad_y):
    xs, grads = group.broadcast(x), group.broadcast(grad_y)
    weights, biases = group.scatter(linear.weight), linear.bias.detach().chunk(len(group))
    y = group.gather([F.linear(x_i, w, b) for x_i, w, b in zip(xs, weights, biases)], dim=1)
    grads = [g.chunk(len(group), 1)[i] for i, g in enumerate(grads)]
    grad_xs = [g @ w for g, w in zip(grads, weights)]
    group.all_reduce(grad_xs)
    return y, grad_xs, [g.T @ x_i for g, x_i in zip(grads, xs)], [g.sum(0) for g in grads]


def names_one_gradient_for_all(group, linear, x, grad_y):
    y, grad_xs, *grads = by_columns(group, linear, x, grad_y)
    return y, [grad_xs[0]] * len(group), *grads


def joins_the_output_without_a_message(group, linear, x, grad_y):
    y, *rest = by_columns(group, linear, x, grad_y)
    return torch.cat([part * 1.0 for part in group.scatter(y, dim=1)], dim=1), *rest


def generates_the_shards(group, linear, x, grad_y):
    y, grad_xs, weight_grads, bias_grads = by_columns(group, linear, x, grad_y)
    return y, grad_xs, (g for g in weight_grads), bias_grads


def knows_two_devices(group, linear, x, grad_y):
    half = linear.out_features // 2
    group.send(linear.weight[half:], 0, 1)
    return by_columns(group, linear, x, grad_y)


def all_reduces_twice(group, linear, x, grad_y):
    y, grad_xs, *grads = by_columns(group, linear, x, grad_y)
    group.all_reduce(grad_xs)
    return y, grad_xs, *grads


def averages(group, linear, x, grad_y):
    y, grad_xs, *grads = by_columns(group, linear, x, grad_y)
    return y, [g / len(group) for g in grad_xs], *grads


def sums_on_number_0_only(group, linear, x, grad_y):
    y, grad_xs, *grads = by_columns(group, linear, x, grad_y, all_reduce=False)
    total = sum(group.send(g, i, 0) for i, g in enumerate(grad_xs))
    return y, [total, *grad_xs[1:]], *grads


def returns_the_parts_of_y(group, linear, x, grad_y):
    y, *rest = by_columns(group, linear, x, grad_y)
    return group.scatter(y, dim=1), *rest


def gathers_along_the_samples(group, linear, x, grad_y):
    y, *rest = by_columns(group, linear, x, grad_y)
    return torch.cat(group.scatter(y, dim=1)), *rest


def joins_in_reverse(group, linear, x, grad_y):
    y, *rest = by_columns(group, linear, x, grad_y)
    return torch.cat(y.chunk(len(group), 1)[::-1], 1), *rest


def cuts_the_wrong_dim(group, linear, x, grad_y):
    weights = leaves(group.scatter(linear.weight, dim=1))
    xs = leaves(group.scatter(x, dim=1))
    ys = [F.linear(x_i, w) for x_i, w in zip(xs, weights)]
    group.all_reduce(ys)
    for x_i, w, grad in zip(xs, weights, group.broadcast(grad_y)):
        F.linear(x_i, w).backward(grad)
    grad_x = group.broadcast(group.gather([x_i.grad for x_i in xs], dim=1))
    return ys[0].detach() + linear.bias.detach(), grad_x, [w.grad for w in weights], group.scatter(grad_y.sum(0))


def never_talks(group, linear, x, grad_y):
    xs, n = leaves([x]), len(group)
    y = linear(*xs)
    y.backward(grad_y)
    return y, [xs[0].grad] * n, list(linear.weight.grad.chunk(n)), list(linear.bias.grad.chunk(n))


def joins_the_gradients(group, linear, x, grad_y):
    y, grad_xs, weight_grads, bias_grads = by_columns(group, linear, x, grad_y)
    return y, grad_xs, group.all_gather(weight_grads), bias_grads


def adds_into_x(group, linear, x, grad_y):
    results = by_columns(group, linear, x, grad_y)
    x += 1
    return results


def returns_nothing(group, linear, x, grad_y):
    by_columns(group, linear, x, grad_y)


def in_single_precision(group, linear, x, grad_y):
    y, *rest = by_columns(group, linear, x, grad_y)
    return y.float(), *rest


WRONG = [
    (forgets_the_all_reduce, "it is device 0's own summand"),
    (forgets_the_bias, "without the bias"),
    (sends_the_whole_weight, "device 1 received 350 of the layer's 360 parameters, and its shard has 180"),
    (sends_the_whole_bias, "device 1 received 190 of the layer's 360 parameters"),
    (takes_the_bias_without_a_message, "an operation mixes tensors of devices 0 and 1"),
    (names_one_gradient_for_all, "grad_xs[1] is on device 0, and belongs on device 1"),
    (joins_the_output_without_a_message, "an operation mixes tensors of devices 0 and 1"),
    (generates_the_shards, "weight_grads is a generator"),
    (knows_two_devices, "there is no device number 1"),
    (all_reduces_twice, "2 times too large"),
    (averages, "a mean over devices"),
    (sums_on_number_0_only, "it is device 1's own summand"),
    (returns_the_parts_of_y, "y is a list"),
    (gathers_along_the_samples, "y has shape (6, 10), and should have (3, 20)"),
    (joins_in_reverse, "in the devices' order"),
    (cuts_the_wrong_dim, "weight_grads[0] has shape (20,"),
    (never_talks, "through the group, and cannot do with fewer"),
    (joins_the_gradients, "has the whole weight's shape"),
    (adds_into_x, "changed in place a tensor that it was given"),
    (returns_nothing, "returned a NoneType"),
    (in_single_precision, "y is float32"),
]


def by_formula(group, linear, x, grad_y):
    group.reset()  # as the chapter does before it counts
    n, last = len(group), len(group) - 1
    weights = [group.send(w.clone(), 0, i) for i, w in enumerate(linear.weight.detach().chunk(n))]
    biases = [group.send(b.clone(), 0, i) for i, b in enumerate(linear.bias.detach().chunk(n))]
    xs, grads = group.broadcast(x), group.broadcast(grad_y)  # the whole gradient everywhere: more than is needed
    width = len(biases[0])
    grads = [g[:, i * width : (i + 1) * width] for i, g in enumerate(grads)]
    y = group.gather([x_i @ w.T + b for x_i, w, b in zip(xs, weights, biases)], dim=1)
    grad_xs = [g @ w for g, w in zip(grads, weights)]
    total = sum(group.send(g, i, last) for i, g in enumerate(grad_xs))
    grad_xs = tuple(group.send(total, last, i) for i in range(n))
    return [y, grad_xs, [g.T @ x_i for g, x_i in zip(grads, xs)], [g.sum(0) for g in grads]]


def with_modules(group, linear, x, grad_y):
    """A linear layer on each device, and its input's gradients all to all, where each adds them up: more than is needed."""
    layers = []
    for device, w, b in zip(group.devices, group.scatter(linear.weight), group.scatter(linear.bias)):
        layers.append(torch.nn.Linear(*w.shape[::-1], device=device, dtype=w.dtype))
        layers[-1].load_state_dict({"weight": w, "bias": b})
    xs = [torch.nn.Parameter(x_i) for x_i in group.broadcast(x)]
    ys = [layer(x_i) for layer, x_i in zip(layers, xs)]
    torch.autograd.backward(ys, group.scatter(grad_y, dim=1))
    grad_xs = [all_of_them.sum(0) for all_of_them in group.all_gather([x_i.grad[None] for x_i in xs])]
    y, *_ = group.all_gather(ys, dim=1)
    return y, grad_xs, [layer.weight.grad for layer in layers], [layer.bias.grad for layer in layers]


RIGHT = [by_columns, by_formula, with_modules]
