"""A group of devices that are all the CPU but kept apart: tracks where tensors are and what is sent."""

import traceback

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ... import cells
from ...checks.expect import expect
from ...checks.watch.fake_gpus import try_on_gpus
from ...parallel.device_group import DeviceGroup


class Places(TorchDispatchMode):
    """Tracks the device number of each tensor and what is computed from `traced` ones; keeps the first fault."""

    def __init__(self):
        super().__init__()
        # Keys are memory addresses; values hold the tensors, so that no other tensor gets their memory.
        self.kept, self.traced, self.fault = {}, {}, None

    def put(self, tensor, number):
        self.kept[tensor.untyped_storage().data_ptr()] = number, tensor

    def find(self, tensor):
        """Return the tensor's device number; None if it depends on no given tensor and may be anywhere."""
        return self.kept.get(tensor.untyped_storage().data_ptr(), (None,))[0]

    def trace(self, *tensors):
        """Follow what is computed from these tensors."""
        self.traced.update((tensor.untyped_storage().data_ptr(), tensor) for tensor in tensors)

    def is_traced(self, tensor):
        return tensor.untyped_storage().data_ptr() in self.traced

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        given = _tensors((args, kwargs))
        numbers = sorted({self.find(t) for t in given if t.dim()} - {None})  # 0-dim tensors may be anywhere
        if len(numbers) > 1:
            self.fault = self.fault or f"{_own_line()} mixes tensors of devices {' and '.join(map(str, numbers))}"
        is_traced = any(map(self.is_traced, given))
        results = operation(*args, **(kwargs or {}))
        for t in _tensors(results):
            if numbers and self.find(t) is None:
                self.put(t, numbers[0])
            if is_traced:
                self.trace(t)
        return results


class PlacedGroup(DeviceGroup):
    """A group of CPUs that tracks each tensor's device (`places`), what arrived, and which traced data was sent.

    Bytes are counted from its creation on; the check needs the count, so an answer's reset() does nothing.
    """

    def __init__(self, num_devices):
        super().__init__(["cpu"] * num_devices)
        self.places, self.arrived, self.sent_traced = Places(), [[] for _ in self.devices], []

    def reset(self):
        if not hasattr(self, "sent_bytes"):
            super().reset()

    def send(self, tensor, source, target):
        copy_there, there = super().send(tensor, source, target), self.places.find(tensor)
        if there not in (None, source):
            self.places.fault = (
                self.places.fault or f"{_own_line()} sends from device {source} a tensor of device {there}"
            )
        if source != target:
            self.places.put(copy_there, target)
            self.arrived[target].append(copy_there.flatten().clone())
            if self.places.is_traced(tensor):
                self.places.trace(copy_there)
                self.sent_traced.append((source, target))
        return copy_there

    def num_received(self, tensor, number):
        """Return how many numbers of `tensor` device `number` has received.

        The numbers are random, so equal ones are the same.
        """
        arrived = self.arrived[number]
        return int(torch.isin(tensor.detach(), torch.cat(arrived)).sum()) if arrived and number else 0

    def expect_at(self, **results):
        """Expect each of `results` on device 0, or, if it is a list, one tensor on each device."""
        for name, result in results.items():
            parts = enumerate(result) if isinstance(result, list) else [(0, result)]
            for number, tensor in parts:
                found, name_of = self.places.find(tensor), f"{name}[{number}]" if isinstance(result, list) else name
                expect(found in (None, number), f"{name_of} is on device {found}, and belongs on device {number}")

    def expect_through(self, least):
        """Expect that no operation mixed devices, and that at least `least` bytes went through the group."""
        question = "does every device get all that it computes with, and every result, through the group?"
        expect(self.places.fault is None, f"{self.places.fault}: {question}")
        told = f"the devices sent {self.total_bytes:,} bytes through the group, and that is too little"
        expect(self.total_bytes >= least, f"{told}: {question}")


class _FakeGroup(DeviceGroup):
    def __init__(self, devices):
        self.devices = devices  # fake devices
        self.reset()

    def all_reduce(self, tensors):  # fake tensors have no memory to share
        first, *others = (tensor.detach() for tensor in tensors)
        for number, tensor in enumerate(others, 1):
            first += self.send(tensor, number, 0)
            tensor.copy_(self.send(first, 0, number))


def try_with_group(call):
    """Call `call(group, new)` with a group of 3 fake GPUs, as `try_on_gpus` does.

    `new` are the settings for tensors on the first of them. Only errors about a tensor on the wrong device count.
    """

    def with_group(devices):
        try:
            call(_FakeGroup(devices), {"device": devices[0], "dtype": torch.float64})
        except ValueError as error:
            is_elsewhere = "the tensor to send is on" in str(error)
            expect(not is_elsewhere, f"it works where all devices are the CPU, and fails on 3 GPUs: {error}")

    try_on_gpus(with_group, 3)


def _tensors(tree):
    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor) and t.numel()]


def _own_line():
    own = [frame for frame in traceback.extract_stack() if cells.is_own(frame.filename)]
    return f"`{own[-1].line}`" if own and own[-1].line else "an operation"
