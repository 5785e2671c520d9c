"""Cost of the lecture's network on several devices, split in one of three ways: counted, not computed.

It is counted on the meta device, whose tensors have a shape but no data. A device holds weights, gradients and
momentum, three times the weights' bytes, and the activations kept for the backward pass.
"""

from dataclasses import dataclass

import torch
from torch import nn

from ...measure import memory


@dataclass(frozen=True)
class Cost:
    """Bytes held by each device; transfers and all-reduces, and bytes sent by all devices, in a step."""

    held: tuple
    num_waits: int  # at each transfer and each all-reduce a device waits for another
    num_bytes: int

    def __str__(self):
        held = f"{max(self.held) / 1e6:11.2f} MB {min(self.held) / 1e6:6.2f} MB"
        return f"{held} {self.num_waits:12d} {self.num_bytes / 1e6:14.2f} MB"


def compare(batch_size, num_devices, layers):
    """Return {way: Cost}; `layers` are the numbers of consecutive layers per device when split by layers."""
    return {
        "one device": one_device(batch_size),
        "by layers": by_layers(batch_size, layers),
        "inside layers": inside_layers(batch_size, num_devices),
        "by data": by_data(batch_size, num_devices),
    }


def table(batch_size, ways):
    """Return rows for {way: Cost} below a title."""
    title = f"batch {batch_size:<10d} fullest device  emptiest  synchronisations       sent"
    return "\n".join([title, *(f"  {way:14s}{cost}" for way, cost in ways.items())])


def one_device(batch_size):
    return Cost((_held(_blocks(), _images(batch_size))[0],), 0, 0)


def by_layers(batch_size, sizes):
    """Return the Cost of a split by layers; `sizes` are the numbers of consecutive layers per device, 5 in all."""
    rest, x, held, num_bytes = _blocks(), _images(batch_size), [], 0
    for size in sizes:
        stage, rest = rest[:size], rest[size:]
        stage_bytes, x = _held(stage, x)
        held.append(stage_bytes)
        num_bytes += 2 * x.nbytes if rest else 0  # activations forward, gradients back
    return Cost(tuple(held), 2 * (len(sizes) - 1), num_bytes)


def inside_layers(batch_size, num_devices):
    """Return the Cost of a split inside layers.

    Each device has 1/N of the channels of conv1 and of the features of fc1, and computes partial sums of the outputs of
    conv2 and fc2. These are all-reduced in the forward pass, the gradient of fc1's input in the backward pass. Every
    device computes all of fc3.
    """
    blocks, summed = _blocks(128 // num_devices, 120 // num_devices), []
    conv2, fc1, fc2 = blocks[1][0], blocks[2][0], blocks[3][0]
    for layer in (conv2, fc2):
        layer.register_forward_hook(lambda layer, inputs, output: summed.append(output.nbytes))
    fc1.register_forward_hook(lambda layer, inputs, output: summed.append(inputs[0].nbytes))
    held, _ = _held(blocks, _images(batch_size))
    return Cost((held,) * num_devices, len(summed), sum(_all_reduce(b, num_devices) for b in summed))


def by_data(batch_size, num_devices):
    held = tuple(_held(_blocks(), part)[0] for part in _images(batch_size).tensor_split(num_devices))
    net = nn.Sequential(*_blocks())
    num_tensors = len(list(net.parameters()))  # an all-reduce for each
    return Cost(held, num_tensors, _all_reduce(memory.weight_bytes(net), num_devices))


def _all_reduce(num_bytes, num_devices):
    """Return the bytes sent when one device sums a tensor of `num_bytes` from each and sends the sum back."""
    return 2 * (num_devices - 1) * num_bytes


def _images(batch_size):
    return torch.empty(batch_size, 3, 32, 32, device="meta")


def _blocks(channels=128, features=120):
    """Return the lecture's network as five blocks: a layer with parameters and what follows it."""
    with torch.device("meta"):
        conv1, conv2 = nn.Conv2d(3, channels, 5), nn.Conv2d(channels, 16, 5)
        fc1, fc2, fc3 = nn.Linear(400, features), nn.Linear(features, 84), nn.Linear(84, 10)
    return [
        nn.Sequential(conv1, nn.ReLU(), nn.MaxPool2d(2)),  # (B, 3, 32, 32) → (B, 128, 14, 14)
        nn.Sequential(conv2, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),  # → (B, 400)
        nn.Sequential(fc1, nn.ReLU()),  # → (B, 120)
        nn.Sequential(fc2, nn.ReLU()),  # → (B, 84)
        fc3,  # → (B, 10)
    ]


def _held(blocks, x):
    """Return the bytes that a device with these blocks holds, and the blocks' output."""
    net = nn.Sequential(*blocks)
    with memory.Activations(net) as activations:
        output = net(x)
    return 3 * memory.weight_bytes(net) + activations.num_bytes, output.detach()
