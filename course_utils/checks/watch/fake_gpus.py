"""Fake GPUs: they find an answer that mixes devices, on a machine without a GPU."""

import os
import re
import traceback
from collections.abc import Callable

import torch
from torch import autograd
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily

from ... import cells
from ..expect import expect

_MIXED = re.compile(r"two (different )?devices|comes before it$")


def try_on_gpus(call: Callable[[list[torch.device]], object], num_devices: int = 1) -> None:
    """Call `call(devices)`, in which tensors have shapes, dtypes and devices, but no data.

    PyTorch refuses to mix these devices, as with real GPUs; then this raises Wrong with the student's line. `call` may
    have expectations of its own, such as the device of a result. If the answer reads a number, with `.item()` or `if`,
    or calls the driver, the rest of `call` is skipped and nothing is raised. Call this last in a check's worker: it
    hides real GPUs for the rest of the process. It does nothing if PyTorch was built without CUDA.
    """
    if not torch.backends.cuda.is_built():
        return  # some operations would crash the process
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # otherwise PyTorch looks for real GPUs
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False  # otherwise autocast disables itself
    # PyTorch raises on every device; nothing else in this worker needs the original.
    FakeTensor.numpy = _zeros_in_numpy
    FakeTensor.new_tensor, FakeTensor.new = _new_tensor, _new  # PyTorch's versions lose the GPU's index
    autograd._engine_run_backward = _zero_gradients  # the engine would query the driver
    devices = [torch.device("cuda", i) for i in range(num_devices)]
    with FakeTensorMode(allow_non_fake_inputs=True):
        try:
            call(devices)
        except RuntimeError as error:
            first = str(error).strip().partition("\n")[0]
            gpus = f"on {num_devices} GPUs" if num_devices > 1 else "on a GPU"
            expect(
                not _MIXED.search(first),
                f"it works with all tensors on one device, and fails {gpus}{_place(error)}: {first}",
            )
        except AssertionError as error:
            if not re.match("NYI|Torch not compiled|fake_mode", str(error)):  # needs data, a driver or threads
                raise


def put_on(module: torch.nn.Module, device: torch.device | str) -> torch.nn.Module:
    """Replace the parameters of `module` with ones on a fake device and return it; `Module.to` cannot do this."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            setattr(part, name, torch.nn.Parameter(torch.empty_like(parameter, device=device)))
    return module


def _place(error):
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if cells.is_own(frame.filename)]
    return f" at `{own[-1].line}`" if own and own[-1].line else ""


def _new_tensor(tensor, data, *, dtype=None, device=None, **options):
    return torch.tensor(data, dtype=dtype or tensor.dtype, device=device or tensor.device, **options)


def _new(tensor, *args):
    return tensor.new_tensor(*args) if args and isinstance(args[0], list) else tensor.new_empty(*args or (0,))


# Replaces autograd's engine.
def _zero_gradients(outputs, gradients, retain_graph, create_graph, inputs, *_, accumulate_grad, **__):
    if not accumulate_grad:
        return tuple(torch.zeros_like(tensor) for tensor in inputs)
    for leaf in inputs or _leaves([output.grad_fn for output in outputs]):
        leaf.grad = torch.zeros_like(leaf)


def _leaves(nodes):
    seen = set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [following for following, _ in node.next_functions]
            if hasattr(node, "variable"):
                yield node.variable


def _zeros_in_numpy(tensor, **_):
    if tensor.device.type != "cpu":
        raise RuntimeError(f"a tensor on {tensor.device} has no numpy(); .cpu() comes before it")
    with unset_fake_temporarily():
        return torch.zeros(tensor.shape, dtype=tensor.dtype).numpy()
