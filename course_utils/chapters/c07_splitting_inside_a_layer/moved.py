"""Bytes that the devices of a `DeviceGroup` send in a training step, counted where they move; the tensors' values do
not matter.

Placing shards and samples does not count. All in float32.
"""

import itertools

import torch


def inside_layers(layer, x):
    """A step of a split layer that has `group`, `forward(xs)` and `backward(grad_ys)`, for a whole `x` on number 0."""
    xs = layer.group.broadcast(x)
    layer.group.reset()
    layer.backward(layer.forward(xs))  # the output serves as its own gradient
    return layer.group.total_bytes


def by_data(group, parameters):
    """Replicas all-reduce the gradient of each parameter, once."""
    group.reset()
    for p in parameters:
        group.all_reduce(_on_each(group, *p.shape))
    return group.total_bytes


def by_layers(group, *shape):
    """A stage on each device: activations of this shape go over every boundary, and their gradients come back."""
    group.reset()
    for i, j in itertools.pairwise(range(len(group))):
        group.send(torch.zeros(shape, device=group.devices[i]), i, j)
        group.send(torch.zeros(shape, device=group.devices[j]), j, i)
    return group.total_bytes


def alone(group, batch_size, summed, gathered):
    """A layer by itself: `summed` features of each sample are all-reduced, `gathered` features all-gathered."""
    group.reset()
    group.all_reduce(_on_each(group, batch_size, summed))
    parts = _on_each(group, batch_size, gathered // len(group))
    for i, j in itertools.permutations(range(len(group)), 2):
        group.send(parts[i], i, j)
    return group.total_bytes


def _on_each(group, *shape):
    return [torch.zeros(shape, device=device) for device in group.devices]
