"""Bytes that the devices of a `DeviceGroup` send in a training step, counted as they are sent.

Placing shards and samples does not count. All tensors are float32; their values do not matter.
"""

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


def _on_each(group, *shape):
    return [torch.zeros(shape, device=device) for device in group.devices]
