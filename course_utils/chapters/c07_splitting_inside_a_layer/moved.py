"""Bytes that the devices of a `DeviceGroup` send in a training step, counted as they are sent.

Placing shards and samples does not count. All tensors are float32; their values do not matter.
"""

import itertools

import torch


def inside_layers(layer, x):
    """Return the bytes of a step of a split layer, for a whole `x` on device 0.

    `layer` has `group`, `forward(xs)` and `backward(grad_ys)`.
    """
    xs = layer.group.broadcast(x)
    layer.group.reset()
    layer.backward(layer.forward(xs))  # the output serves as its own gradient
    return layer.group.total_bytes


def by_data(group, parameters):
    """Return the bytes of replicas that all-reduce each parameter's gradient once."""
    group.reset()
    for p in parameters:
        group.all_reduce(_on_each(group, *p.shape))
    return group.total_bytes


def by_layers(group, *shape):
    """Return the bytes of a stage per device: activations of `shape` cross every boundary, gradients return."""
    group.reset()
    for i, j in itertools.pairwise(range(len(group))):
        group.send(torch.zeros(shape, device=group.devices[i]), i, j)
        group.send(torch.zeros(shape, device=group.devices[j]), j, i)
    return group.total_bytes


def alone(group, batch_size, summed, gathered):
    """Return the bytes of one layer: per sample, `summed` features all-reduced and `gathered` all-gathered."""
    group.reset()
    group.all_reduce(_on_each(group, batch_size, summed))
    parts = _on_each(group, batch_size, gathered // len(group))
    for i, j in itertools.permutations(range(len(group)), 2):
        group.send(parts[i], i, j)
    return group.total_bytes


def _on_each(group, *shape):
    return [torch.zeros(shape, device=device) for device in group.devices]
