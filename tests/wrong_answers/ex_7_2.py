"""Exercise 7.2: answers that its check must refuse, each with words from the reason that it must give."""

import torch
import torch.nn.functional as F


def leaves(tensors):
    return [t.detach().requires_grad_() for t in tensors]


def by_rows(group, linear, xs, grad_ys, bias_on=(0,), all_reduce=True):
    """The right answer, with a bias on the devices `bias_on` before the sum."""
    xs, weights = leaves(xs), leaves(group.scatter(linear.weight, dim=1))
    summands = [F.linear(x, w) for x, w in zip(xs, weights)]
    ys = [y.detach() for y in summands]
    bias = group.broadcast(linear.bias) if len(bias_on) > 1 else [linear.bias.detach()]
    for i in bias_on:
        if i < len(group):
            ys[i] += bias[i]
    if all_reduce:
        group.all_reduce(ys)
    for y, grad in zip(summands, grad_ys):
        y.backward(grad)
    return ys, [x.grad for x in xs], [w.grad for w in weights], grad_ys[0].sum(0)


def adds_the_bias_on_every_device(group, linear, xs, grad_ys):
    return by_rows(group, linear, xs, grad_ys, bias_on=range(len(group)))


def adds_the_bias_on_two_devices(group, linear, xs, grad_ys):
    return by_rows(group, linear, xs, grad_ys, bias_on=(0, 1))


def forgets_the_bias(group, linear, xs, grad_ys):
    return by_rows(group, linear, xs, grad_ys, bias_on=())


def forgets_the_all_reduce(group, linear, xs, grad_ys):
    return by_rows(group, linear, xs, grad_ys, all_reduce=False)


def adds_the_bias_on_number_0_after_the_sum(group, linear, xs, grad_ys):
    ys, *rest = by_rows(group, linear, xs, grad_ys, bias_on=())
    ys[0] += linear.bias.detach()
    return ys, *rest


def sums_the_bias_gradient_over_devices(group, linear, xs, grad_ys):
    *rest, bias_grad = by_rows(group, linear, xs, grad_ys)
    return *rest, bias_grad * len(group)


def averages_the_bias_gradient(group, linear, xs, grad_ys):
    *rest, bias_grad = by_rows(group, linear, xs, grad_ys)
    return *rest, bias_grad / len(group)


def takes_the_bias_gradients_mean_over_samples(group, linear, xs, grad_ys):
    *rest, _ = by_rows(group, linear, xs, grad_ys)
    return *rest, grad_ys[0].mean(0)


def a_bias_gradient_for_each_device(group, linear, xs, grad_ys):
    *rest, bias_grad = by_rows(group, linear, xs, grad_ys)
    return *rest, [bias_grad] * len(group)


def all_reduces_the_output_gradients(group, linear, xs, grad_ys):
    grad_ys = [g.clone() for g in grad_ys]
    group.all_reduce(grad_ys)
    return by_rows(group, linear, xs, grad_ys)


def all_reduces_the_given_gradients(group, linear, xs, grad_ys):
    group.all_reduce(grad_ys)
    return by_rows(group, linear, xs, grad_ys)


def all_reduces_the_input_gradients(group, linear, xs, grad_ys):
    ys, grad_xs, *rest = by_rows(group, linear, xs, grad_ys)
    group.all_reduce(grad_xs)
    return ys, grad_xs, *rest


def joins_the_input_first(group, linear, xs, grad_ys):
    wholes = leaves(group.all_gather(xs, dim=1))
    weights = leaves(group.broadcast(linear.weight))
    ys = [F.linear(x, w, b) for x, w, b in zip(wholes, weights, group.broadcast(linear.bias))]
    for y, grad in zip(ys, grad_ys):
        y.backward(grad)
    n = len(group)
    grad_xs = [x.grad.chunk(n, 1)[i] for i, x in enumerate(wholes)]
    return ys, grad_xs, [w.grad.chunk(n, 1)[i] for i, w in enumerate(weights)], grad_ys[0].sum(0)


def moves_the_output_twice(group, linear, xs, grad_ys):
    ys, *rest = by_rows(group, linear, xs, grad_ys)
    return group.broadcast(ys[0]), *rest


def adds_the_bias_without_a_message(group, linear, xs, grad_ys):
    ys, *rest = by_rows(group, linear, xs, grad_ys, bias_on=())
    return [y + linear.bias.detach() for y in ys], *rest


def takes_the_weights_without_a_message(group, linear, xs, grad_ys):
    weights = linear.weight.detach().chunk(len(group), 1)
    ys = [x @ w.T for x, w in zip(xs, weights)]
    ys[0] = ys[0] + linear.bias.detach()
    group.all_reduce(ys)
    return ys, [g @ w for g, w in zip(grad_ys, weights)], [g.T @ x for g, x in zip(grad_ys, xs)], grad_ys[0].sum(0)


def names_one_output_for_all(group, linear, xs, grad_ys):
    ys, *rest = by_rows(group, linear, xs, grad_ys)
    return [ys[0]] * len(group), *rest


def sends_every_summand_everywhere(group, linear, xs, grad_ys):
    ys, *rest = by_rows(group, linear, xs, grad_ys, all_reduce=False)
    return [all_of_them.sum(0) for all_of_them in group.all_gather([y[None] for y in ys])], *rest


def broadcasts_the_gradient_it_has(group, linear, xs, grad_ys):
    return by_rows(group, linear, xs, group.broadcast(grad_ys[0]))


def cuts_the_wrong_dim(group, linear, xs, grad_ys):
    return by_rows(group, linear, group.scatter(group.gather(xs, dim=1), dim=1), grad_ys)[:2] + (
        group.scatter(linear.weight), grad_ys[0].sum(0))


def returns_one_output(group, linear, xs, grad_ys):
    ys, *rest = by_rows(group, linear, xs, grad_ys)
    return ys[0], *rest


WRONG = [
    (adds_the_bias_on_every_device, "the bias is in it 2 times"),
    (adds_the_bias_on_two_devices, "the bias is in it 2 times"),
    (forgets_the_bias, "without the bias"),
    (forgets_the_all_reduce, "are the devices' summands added up"),
    (adds_the_bias_on_number_0_after_the_sum, "ys[1] differs"),
    (sums_the_bias_gradient_over_devices, "2 times too large"),
    (averages_the_bias_gradient, "a mean over devices"),
    (takes_the_bias_gradients_mean_over_samples, "over which dims"),
    (a_bias_gradient_for_each_device, "the layer has one bias"),
    (all_reduces_the_output_gradients, "was it summed over devices that hold the same"),
    (all_reduces_the_given_gradients, "changed in place a tensor that it was given"),
    (all_reduces_the_input_gradients, "which devices' shards"),
    (joins_the_input_first, "the whole weight to every device"),
    (moves_the_output_twice, "where 1,"),
    (adds_the_bias_without_a_message, "an operation mixes tensors of devices 0 and 1"),
    (takes_the_weights_without_a_message, "an operation mixes tensors of devices 0 and 1"),
    (names_one_output_for_all, "ys[1] is on device 0, and belongs on device 1"),
    (sends_every_summand_everywhere, "where 1,"),
    (broadcasts_the_gradient_it_has, "is anything sent in the backward pass"),
    (cuts_the_wrong_dim, "weight_grads[0] has shape"),
    (returns_one_output, "ys is a Tensor"),
]


def adds_the_bias_after_the_sum(group, linear, xs, grad_ys):
    weights = group.scatter(linear.weight, dim=1, equal=True)
    biases = leaves(group.broadcast(linear.bias))
    ys = [x @ w.T for x, w in zip(xs, weights)]
    group.all_reduce(ys)
    ys = [y + b for y, b in zip(ys, biases)]
    for y, grad in zip(ys, grad_ys):
        y.backward(grad)
    grad_xs = tuple(g @ w for g, w in zip(grad_ys, weights))
    return [ys, grad_xs, [g.T @ x for g, x in zip(grad_ys, xs)], biases[-1].grad]


def shares_the_bias_out(group, linear, xs, grad_ys):
    weights, n = leaves(group.scatter(linear.weight, dim=1)), len(group)
    biases, xs = leaves(group.broadcast(linear.bias)), leaves(xs)
    summands = [F.linear(x, w, b / n) for x, w, b in zip(xs, weights, biases)]
    for y, grad in zip(summands, grad_ys):
        y.backward(grad)
    ys = [y.detach() for y in summands]
    group.all_reduce(ys)
    bias_grads = [b.grad for b in biases]
    group.all_reduce(bias_grads)
    return ys, [x.grad for x in xs], [w.grad for w in weights], bias_grads[0]


def on_the_last_device_in_numpy(group, linear, xs, grad_ys):
    weights, last = group.scatter(linear.weight, dim=1), len(group) - 1
    ys = [torch.from_numpy(x.numpy() @ w.numpy().T) for x, w in zip(xs, weights)]
    ys[last] += group.send(linear.bias, 0, last)
    total = sum(group.send(y, i, 0) for i, y in enumerate(ys))
    bias_grad = grad_ys[last].numpy().sum(0)
    return tuple(group.broadcast(total)), [g @ w for g, w in zip(grad_ys, weights)], [
        torch.einsum("bo,bi->oi", g, x) for g, x in zip(grad_ys, xs)], torch.from_numpy(bias_grad)


RIGHT = [by_rows, adds_the_bias_after_the_sum, shares_the_bias_out, on_the_last_device_in_numpy]
