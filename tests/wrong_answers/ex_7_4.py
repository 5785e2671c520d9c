"""Exercise 7.4: answers that its check must refuse, each with words from the reason that it must give."""

import math

import torch

from course_utils.parallel.device_group import DeviceGroup


def sizes(conv1, conv2, x_shape):
    """Numbers in the input, in the output, in all parameters."""
    with torch.no_grad():
        y = conv2(conv1(torch.zeros(x_shape)))
    return math.prod(x_shape), y.numel(), sum(p.numel() for conv in (conv1, conv2) for p in conv.parameters())


def scaled(by):
    """What all devices send for each number that is all-reduced, as `by(num_devices)` has it."""

    def bytes_moved(conv1, conv2, x_shape, num_devices):
        num_in, num_out, num_parameters = sizes(conv1, conv2, x_shape)
        return round(by(num_devices) * (num_in + num_out)), round(by(num_devices) * num_parameters)

    return bytes_moved


def counts_numbers(conv1, conv2, x_shape, num_devices):
    return scaled(lambda n: 2 * (n - 1))(conv1, conv2, x_shape, num_devices)


def counts_the_tensors(conv1, conv2, x_shape, num_devices):
    return scaled(lambda n: 4)(conv1, conv2, x_shape, num_devices)


def counts_one_device(conv1, conv2, x_shape, num_devices):
    return scaled(lambda n: 8 * (n - 1) / n)(conv1, conv2, x_shape, num_devices)


def counts_every_device(conv1, conv2, x_shape, num_devices):
    return scaled(lambda n: 8 * n)(conv1, conv2, x_shape, num_devices)


def counts_one_way(conv1, conv2, x_shape, num_devices):
    return scaled(lambda n: 4 * (n - 1))(conv1, conv2, x_shape, num_devices)


def forgets_the_backward_pass(conv1, conv2, x_shape, num_devices):
    _, num_out, num_parameters = sizes(conv1, conv2, x_shape)
    return 8 * (num_devices - 1) * num_out, 8 * (num_devices - 1) * num_parameters


def forgets_the_forward_pass(conv1, conv2, x_shape, num_devices):
    num_in, _, num_parameters = sizes(conv1, conv2, x_shape)
    return 8 * (num_devices - 1) * num_in, 8 * (num_devices - 1) * num_parameters


def all_reduces_the_hidden_maps(conv1, conv2, x_shape, num_devices):
    with torch.no_grad():
        hidden = conv1(torch.zeros(x_shape)).numel()
    num_in, num_out, num_parameters = sizes(conv1, conv2, x_shape)
    return 8 * (num_devices - 1) * (num_in + num_out + hidden), 8 * (num_devices - 1) * num_parameters


def keeps_the_images_size(conv1, conv2, x_shape, num_devices):
    B, _, H, W = x_shape
    num_in, _, num_parameters = sizes(conv1, conv2, x_shape)
    return 8 * (num_devices - 1) * (num_in + B * conv2.out_channels * H * W), 8 * (num_devices - 1) * num_parameters


def forgets_the_biases(conv1, conv2, x_shape, num_devices):
    num_in, num_out, _ = sizes(conv1, conv2, x_shape)
    num_weights = conv1.weight.numel() + conv2.weight.numel()
    return 8 * (num_devices - 1) * (num_in + num_out), 8 * (num_devices - 1) * num_weights


def counts_one_layer(conv1, conv2, x_shape, num_devices):
    num_in, num_out, _ = sizes(conv1, conv2, x_shape)
    return 8 * (num_devices - 1) * (num_in + num_out), 8 * (num_devices - 1) * sum(p.numel() for p in conv2.parameters())


def returns_floats(conv1, conv2, x_shape, num_devices):
    return tuple(map(float, scaled(lambda n: 8 * (n - 1))(conv1, conv2, x_shape, num_devices)))


def returns_one_number(conv1, conv2, x_shape, num_devices):
    return sum(scaled(lambda n: 8 * (n - 1))(conv1, conv2, x_shape, num_devices))


def exchanges_the_two(conv1, conv2, x_shape, num_devices):
    return scaled(lambda n: 8 * (n - 1))(conv1, conv2, x_shape, num_devices)[::-1]


def in_double_precision(conv1, conv2, x_shape, num_devices):
    return scaled(lambda n: 16 * (n - 1))(conv1, conv2, x_shape, num_devices)


def forgets_the_batch(conv1, conv2, x_shape, num_devices):
    num_in, num_out, num_parameters = sizes(conv1, conv2, (1, *x_shape[1:]))
    return 8 * (num_devices - 1) * (num_in + num_out), 8 * (num_devices - 1) * num_parameters


def takes_each_layer_for_biased(conv1, conv2, x_shape, num_devices):
    num_in, num_out, _ = sizes(conv1, conv2, x_shape)
    num_parameters = sum(conv.weight.numel() + conv.out_channels for conv in (conv1, conv2))
    return 8 * (num_devices - 1) * (num_in + num_out), 8 * (num_devices - 1) * num_parameters


def returns_tensors(conv1, conv2, x_shape, num_devices):
    return tuple(map(torch.tensor, scaled(lambda n: 8 * (n - 1))(conv1, conv2, x_shape, num_devices)))


WRONG = [
    (exchanges_the_two, "they are exchanged"),
    (in_double_precision, "how many bytes has a float32"),
    (forgets_the_batch, "which shapes"),
    (takes_each_layer_for_biased, "on 3 devices"),
    (returns_tensors, "not two whole numbers"),
    (counts_numbers, "is that the number of numbers"),
    (counts_the_tensors, "an all-reduce moves more"),
    (counts_one_device, "one device's share"),
    (counts_every_device, "how many devices have something to send"),
    (counts_one_way, "is each of the two counted"),
    (forgets_the_backward_pass, "what does the backward pass add up"),
    (forgets_the_forward_pass, "what does the forward pass add up"),
    (all_reduces_the_hidden_maps, "of which two tensors"),
    (keeps_the_images_size, "which shapes"),
    (forgets_the_biases, "are the biases' gradients in it"),
    (counts_one_layer, "how many parameters"),
    (returns_floats, "not two whole numbers"),
    (returns_one_number, "not two whole numbers"),
]


def by_running_shapes(conv1, conv2, x_shape, num_devices):
    num_in, num_out, num_parameters = sizes(conv1, conv2, x_shape)
    return [8 * (num_devices - 1) * (num_in + num_out), 8 * (num_devices - 1) * num_parameters]


def by_counting(conv1, conv2, x_shape, num_devices):
    """As the chapter counts: a group, and what has the right shape."""
    group, x, counted = DeviceGroup(["cpu"] * num_devices), torch.zeros(x_shape), []
    for tensors in ([conv2(conv1(x)), x], [*conv1.parameters(), *conv2.parameters()]):
        group.reset()
        for tensor in tensors:
            group.all_reduce([torch.zeros_like(tensor) for _ in range(num_devices)])
        counted.append(group.total_bytes)
    return counted


RIGHT = [by_running_shapes, by_counting]
