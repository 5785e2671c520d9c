"""Run a numba kernel on the GPU if there is one, else in the simulator, so that a cell works on both."""

import functools
import re
import types
import warnings

from .. import hardware
from .kernel_error import KernelError
from .simulator import checked, simulate


def run(kernel, grid, block, *args):
    """Run `kernel[grid, block](*args)` on the GPU if there is one, else in the simulator; return the arguments.

    Tensors and arrays are changed in place, on any device, and the kernel has ended on return. The kernel is an
    undecorated function, as for `simulate`, and is compiled at each call: for timings, use a `cuda.jit`-ed one.

    Raises KernelError: in the simulator as `simulate` does; on a GPU if numba cannot compile the kernel, or if a launch
    fails. A GPU checks no index: an access outside an array goes unnoticed, or makes CUDA unusable in this process
    until the notebook is restarted.
    """
    if hardware.devices(1)[0].type != "cuda":
        after = simulate(kernel, grid, block, *args).args
        for given, left in zip(args, after):
            _copy_back(given, left)
        return args
    grid, block, _ = checked(kernel, grid, block, args, max_threads=None)
    return _run_on_gpu(kernel, grid, block, args)


def _copy_back(given, left):
    import numpy as np
    import torch

    if isinstance(given, torch.Tensor):
        given = given.detach()
        # Do not write unless necessary: the tensor may be read-only.
        if not torch.equal(given.cpu(), left):
            given.copy_(left)
    elif isinstance(given, np.ndarray) and not np.array_equal(given, left):
        given[...] = left


def _run_on_gpu(kernel, grid, block, args):
    import numpy as np
    import torch
    from numba import cuda

    device = next((arg.device for arg in args if isinstance(arg, torch.Tensor) and arg.is_cuda), hardware.devices(1)[0])
    tensors = [torch.from_numpy(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
    there = [arg.detach().to(device) if isinstance(arg, torch.Tensor) else arg for arg in tensors]
    with torch.cuda.device(device), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a small grid, which leaves most of the GPU idle
        torch.cuda.synchronize()  # numba's stream is not torch's
        try:
            cuda.jit(_with_helpers(kernel, cuda, {}))[grid, block](*there)
            cuda.synchronize()
        except Exception as error:  # numba's compile errors, or the driver's
            raise KernelError(f"{kernel.__name__}[{grid}, {block}] did not run on the GPU: {_plain(error)}") from error
    for given, left in zip(tensors, there):
        if isinstance(given, torch.Tensor) and not given.is_cuda:
            _copy_back(given, left.cpu())
    return args


def _plain(error):
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()  # numba colours its messages


def _with_helpers(function, cuda, done):
    """Return the function with its plain helpers compiled for the GPU; the simulator needs no compiled helpers."""
    used = {name for code in codes(function.__code__) for name in code.co_names}
    helpers = {name: value for name in used if isinstance(value := function.__globals__.get(name), types.FunctionType)}
    if not helpers:
        return function
    namespace = dict(function.__globals__)
    for name, helper in helpers.items():
        if helper not in done:
            done[helper] = helper  # for a recursive one, numba raises an error
            done[helper] = cuda.jit(device=True)(_with_helpers(helper, cuda, done))
        namespace[name] = done[helper]
    copy = types.FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__
    )
    return functools.update_wrapper(copy, function)


def codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)
