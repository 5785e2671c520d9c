"""Observe an answer's devices: operations that mix them, and numbers read from a GPU, which wait for it."""

import traceback

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ... import cells

_CPU = torch.device("cpu")
_WAYS = {  # a tensor's methods that need its numbers
    **dict.fromkeys(("__repr__", "__format__"), "makes a text of a tensor"),
    **dict.fromkeys(("numpy", "__array__"), "makes a NumPy array of a tensor"),
    "tolist": "makes a list of a tensor",
    **dict.fromkeys(
        ("item", "__bool__", "__float__", "__int__", "__index__", "__complex__", "__contains__", "__dlpack__"),
        "asks for a number",
    ),
}


class Devices(TorchDispatchMode):
    """Set `fault` to a description of the first operation that mixes devices or reads a number from a GPU.

    It names the student's line. On `meta` some such operations raise no error, and an answer may catch the error. As in
    PyTorch, a CPU tensor without dimensions may be combined with tensors on any device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fault: str | None = None

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.fault = self.fault or self._fault(operation.overloadpacket, args, kwargs)
        return operation(*args, **kwargs)

    def _fault(self, operation, args, kwargs):
        aten, tensors = torch.ops.aten, [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        away = next((t.device for t in tensors if t.device != _CPU), None)
        if away is None:
            return None
        if operation in (aten._local_scalar_dense, aten.equal, aten.nonzero):
            return f"{own_line()} asks for a number that is on {away}: on a GPU the program would wait for it"
        home = (
            kwargs.get("device") if operation is aten._to_copy else args[0].device if operation is aten.copy_ else None
        )
        if home == _CPU:
            return f"{own_line()} brings a tensor from {away} to the CPU: on a GPU the program would wait for it"
        places = sorted({str(t.device) for t in tensors if t.dim() or t.device != _CPU})
        # An index may be on the CPU.
        if len(places) > 1 and operation not in (aten.copy_, aten.index, aten.index_put_):
            return f"{own_line()} mixes tensors on {' and '.join(places)}"
        return None


class Values(TorchFunctionMode):
    """Set `fault` to a description of the first time that a text, list or number is made of a tensor not on the CPU.

    It names the student's line. On `meta` and on a fake GPU `print(tensor)` raises no error and shows no number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fault: str | None = None

    def __torch_function__(self, function, types, args=(), kwargs=None):
        way = _WAYS.get(getattr(function, "__name__", ""))
        away = next((x.device for x in args[:1] if isinstance(x, torch.Tensor) and x.device != _CPU), None)
        if way and away and not self.fault:
            self.fault = f"{own_line()} {way} that is on {away}: on a GPU the program would wait for its value"
        return function(*args, **(kwargs or {}))


def own_line(error: BaseException | None = None) -> str:
    """Return a description of the student's innermost line, in an error's traceback or in the current stack."""
    frames = traceback.extract_tb(error.__traceback__) if error else traceback.extract_stack()
    own = [frame for frame in frames if cells.is_own(frame.filename)]
    return f"line {own[-1].lineno}" + (f" ({own[-1].line})" if own[-1].line else "") if own else "a line"
