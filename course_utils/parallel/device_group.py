"""Several devices in one process, with a count of all bytes sent between them.

A device's number is its position in the group's list. With fewer GPUs than positions, a device (or the CPU) takes
several positions; messages between them are still real copies and are counted.
"""

from collections import Counter

import torch

from .. import hardware


class DeviceGroup:
    """Messages between the `devices` of one process, given as a list of `torch.device` or names such as "cuda:0".

    Results carry no autograd, as in torch.distributed: send gradients back explicitly. `sent_bytes` and
    `received_bytes` count per device number.

    Raises ValueError for an empty list, a device that this machine lacks, and a GPU named twice while another is free.
    """

    def __init__(self, devices):
        self.devices = [_existing(device) for device in devices]
        if not self.devices:
            raise ValueError(
                "a DeviceGroup needs at least one device, and the list is empty: hardware.devices(2) gives two"
            )
        times = Counter(device for device in self.devices if device.type == "cuda")
        num_gpus = len(hardware.gpus()) if times else 0
        free = [gpu for gpu in (torch.device("cuda", i) for i in range(num_gpus)) if gpu not in times]
        if free and max(times.values()) > 1:
            twice = times.most_common(1)[0][0]
            raise ValueError(
                f"{twice} stands in the list of devices {times[twice]} times although {free[0]} is free: name each "
                f"GPU once, as hardware.devices({len(self)}) does"
            )
        self.reset()

    def __len__(self):
        return len(self.devices)

    def __str__(self):
        times = Counter(self.devices)
        names = {device: "the CPU" if device.type == "cpu" else str(device) for device in times}
        words = [name if times[device] == 1 else f"{name}, {times[device]} times" for device, name in names.items()]
        return ", ".join(words[:-1]) + " and " * (len(words) > 1) + words[-1]

    @property
    def total_bytes(self):
        """The bytes that all devices together have sent since the last `reset`."""
        return sum(self.sent_bytes)

    def reset(self):
        """Reset the counts to zero."""
        self.sent_bytes, self.received_bytes = [0] * len(self), [0] * len(self)

    def send(self, tensor, source, target):
        """Return a copy on device number `target` of `tensor`, which is on device number `source`.

        If both are equal, nothing is sent and the tensor itself comes back, detached. Raises ValueError for an unknown
        number and for a tensor that is not on `source`.
        """
        for number in (source, target):
            if number not in range(len(self)):
                raise ValueError(f"there is no device number {number}: this group's numbers are 0 to {len(self) - 1}")
        if tensor.device != self.devices[source]:
            raise ValueError(
                f"the tensor to send is on {tensor.device}, but device number {source} is {self.devices[source]}: "
                "move it there first, or name the number that holds it"
            )
        if source == target:
            return tensor.detach()
        self.sent_bytes[source] += tensor.nbytes
        self.received_bytes[target] += tensor.nbytes
        return tensor.detach().to(self.devices[target], copy=True)

    def scatter(self, tensor, dim=0, equal=False):
        """Split a tensor on device 0 along `dim` and return the parts, part i on device i.

        Lengths differ by at most one, longer parts first; no part shares memory with `tensor`. Raises ValueError if a
        part would be empty, and with `equal` if the parts cannot have equal length.
        """
        length = tensor.shape[dim]
        if length < len(self):
            raise ValueError(
                f"dim {dim} has length {length}, so {len(self) - length} of {len(self)} devices would get an empty "
                f"part: take at most {length} devices, or a tensor that is longer"
            )
        if equal and length % len(self):
            raise ValueError(
                f"dim {dim} has length {length}, which {len(self)} devices cannot share equally: take a number of "
                f"devices that divides {length}"
            )
        parts = torch.tensor_split(tensor, len(self), dim)
        # Device 0 gets a copy too: a view would keep the whole tensor in memory, and writing to the part would change
        # it.
        return [
            self.send(part.clone(memory_format=torch.contiguous_format), 0, number) for number, part in enumerate(parts)
        ]

    def broadcast(self, tensor):
        """Return a list of the tensor, which is on device 0, and a copy of it on each other device."""
        return [self.send(tensor, 0, number) for number in range(len(self))]

    def gather(self, tensors, dim=0):
        """Return the tensors, one from each device, concatenated along `dim` on device 0."""
        self._expect_one_each(tensors)
        return torch.cat([self.send(tensor, number, 0) for number, tensor in enumerate(tensors)], dim)

    def all_gather(self, tensors, dim=0):
        """Return a list with, on each device, the tensors of all devices concatenated along `dim`."""
        return self.broadcast(self.gather(tensors, dim))

    @torch.no_grad()
    def all_reduce(self, tensors):
        """Replace each of the tensors, one per device, by their sum, in place.

        Device 0 adds up what the others send and sends the sum back: 2(N − 1)·b bytes in all for N devices and b bytes
        per tensor. Raises ValueError, with nothing changed, if shapes or dtypes differ or if two tensors share memory.
        """
        self._expect_one_each(tensors)
        kinds = {(tuple(tensor.shape), tensor.dtype) for tensor in tensors}
        if len(kinds) > 1:
            seen = "; ".join(f"number {i} has {tuple(t.shape)} {str(t.dtype)[6:]}" for i, t in enumerate(tensors))
            raise ValueError(f"all_reduce adds tensors of one shape and dtype, but {seen}")
        if len({tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}) not in (0, len(self)):
            raise ValueError(
                "all_reduce writes the sum into every tensor, but two of them share memory: clone() all but one"
            )
        first, *others = tensors
        for number, tensor in enumerate(others, 1):
            first += self.send(tensor, number, 0)
        for number, tensor in enumerate(others, 1):
            tensor.copy_(self.send(first, 0, number))

    def _expect_one_each(self, tensors):
        if len(tensors) != len(self):
            raise ValueError(
                f"{len(tensors)} tensors came for {len(self)} devices: give one from each, in the devices' order"
            )


def _existing(device):
    """The device with its index; raises ValueError if this machine lacks it."""
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"{device!r} names no device: write for example 'cpu' or 'cuda:0'") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise ValueError(f"device {device} is neither the CPU nor an NVIDIA GPU, the two that the course runs on")
    num_gpus = len(hardware.gpus())  # those that this torch can use: torch.cuda also counts others
    index = device.index or 0
    if index >= num_gpus:
        there = f"has {num_gpus} GPU{'s' * (num_gpus > 1)}, cuda:0 to cuda:{num_gpus - 1}" if num_gpus else "has no GPU"
        raise ValueError(f"there is no {device}: this machine {there}; hardware.devices(n) names n devices that exist")
    return torch.device("cuda", index)
