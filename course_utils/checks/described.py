"""How messages of checks describe a value that came back."""

import inspect
import reprlib
from typing import TYPE_CHECKING, Any

from .. import cells

if TYPE_CHECKING:
    import torch


def short(value: Any) -> str:
    """Return a short description of `value`: "None", "[1, 2, 3, …]", "a tensor of shape (2, 3)", "the function f"."""
    if is_tensor(value):
        return (
            f"a tensor of shape {tuple(value.shape)}"
            if value.dim()
            else f"tensor({value.item() if has_numbers(value) else '…'})"
        )
    return _Short().repr(value)


class _Short(reprlib.Repr):
    def repr_Tensor(self, value, level):
        return short(value)

    def repr_instance(self, value, level):
        if inspect.isroutine(value):
            return f"the function {value.__name__}"
        try:
            text = cells.without_addresses(repr(value))
        except Exception:  # the student's own __repr__ may raise anything
            return f"an instance of {type(value).__name__}"
        half = self.maxother // 2
        return text if len(text) <= self.maxother else f"{text[:half]}...{text[-half:]}"


def not_a(value: Any, kind: str) -> str:
    """Return that `value` is not `kind`, such as "a number", and of a function how to get what it returns."""
    return f"{short(value)}, not {kind}" + (": call it, with ()" if inspect.isroutine(value) else "")


def is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def has_numbers(tensor: "torch.Tensor") -> bool:
    """Return whether the tensor holds data: tensors on the meta device and FakeTensors do not."""
    from torch._subclasses.fake_tensor import FakeTensor

    return tensor.device.type != "meta" and not isinstance(tensor, FakeTensor)
