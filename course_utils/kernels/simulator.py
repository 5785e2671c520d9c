"""Run numba kernels without a GPU: numba's simulator in a worker, with arrays that record every access.

The simulator must be chosen before numba is first imported, and the notebook has already imported numba without it. So
the kernel is pickled and sent to a worker, which unpickles it after choosing the simulator.
"""

import contextlib
import inspect
import io
import os
import pickle
import sys
import types

from .. import cells
from ..extras import require
from ..launch import WorkerError, launch, unannounced
from ..processes import payload
from .kernel_error import KernelError
from .shape import check_shape, num_in

MAX_THREADS = 4096  # one operating-system thread each; takes 1 to 2 s
_GRACE_S = 10  # to start the worker and locate an endless loop


class Simulated:
    """The result of a simulated launch.

    `args`: the arguments after the launch, tensors on the CPU.
    `touches`: a Touch for each access to a parameter, in order; the first 200,000 of `num_touches`.
    `races`: a Race for each element, also of shared arrays, that two threads access in no defined order, one of them
    writing; the first 100. In the simulator, threads run one after another, so a race does not affect `args`; on a GPU
    it
    may.
    """

    def __init__(self, args, touches, num_touches, races):
        self.args, self.touches, self.num_touches, self.races = args, touches, num_touches, races

    def __repr__(self):
        return f"<Simulated: {self.num_touches:,} touches, {len(self.races)} races>"


def simulate(kernel, grid, block, *args, timeout=30):
    """Run `kernel[grid, block](*args)` in numba's simulator, in a worker, and return a Simulated.

    Args:
        kernel: an undecorated function that uses the notebook's global `cuda` (`from numba import cuda`). It may call
            other functions of the notebook, with or without the decorator `cuda.jit(device=True)`.
        grid, block: number of blocks, and of threads per block: an int, or a tuple of up to three; at most 4096 threads
            in all.
        args: tensors, NumPy arrays and numbers. They are copied and not changed.
        timeout: seconds until the kernel is stopped.

    Raises KernelError if the kernel reads or writes outside an array, fails, does not end, or if some threads miss a
    barrier, and if it cannot be launched.
    """
    (simulated,) = simulate_many(kernel, [(grid, block, args)], timeout)
    return simulated


def simulate_many(kernel, cases, timeout=30):
    """Return a Simulated for each `(grid, block, args)` in `cases`, run in one worker, which takes 0.3 s to start.

    `timeout` is per case. Raises KernelError as `simulate` does for the first case that fails; its `results` are those
    of the cases before. In a worker without numba, or with numba in simulator mode, the cases run in that worker.
    """
    from . import in_worker

    cases = [checked(kernel, grid, block, args) for grid, block, args in cases]
    pickled = pickled_kernel(kernel)
    if os.environ.get("COURSE_IN_WORKER"):
        if "numba" in sys.modules and not sys.modules["numba"].config.ENABLE_CUDASIM:
            raise KernelError("this worker has numba without its simulator: call simulate from the notebook")
        results, refusal = in_worker.run_cases(pickled, pickle.loads(pickle.dumps(cases)), timeout)
    else:
        limit = timeout * len(cases) + _GRACE_S
        try:
            with unannounced():
                run = launch(in_worker.run_cases, pickled, cases, timeout, world_size=1, backend=None, timeout=limit)
        except WorkerError as error:
            raise KernelError(f"the simulator's worker failed:\n{error.text}") from None
        results, refusal = run.results[0]
    results = [Simulated(*result) for result in results]
    if refusal is not None:
        raise _refusal(results, *refusal)
    return results


def _refusal(results, what, frames, exception, advice):
    place = cells.own_line(frames)
    error = KernelError(what + (f"\n  at {place}" if place else ""), advice=advice)
    error.type_module, error.type_name, error.message = exception
    error.results = results
    return error


@contextlib.contextmanager
def simulator_in_workers():
    """Give workers launched in this block numba's simulator, so that their functions may call `simulate`."""
    before = os.environ.get("NUMBA_ENABLE_CUDASIM")
    # Workers inherit the environment before they unpickle their function.
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    try:
        yield
    finally:
        del os.environ["NUMBA_ENABLE_CUDASIM"]
        if before is not None:
            os.environ["NUMBA_ENABLE_CUDASIM"] = before


def checked(kernel, grid, block, args, max_threads=MAX_THREADS):
    """Return (grid, block, args); raise KernelError if the kernel cannot be launched with them."""
    import numpy as np
    import torch

    if hasattr(kernel, "py_func"):
        raise KernelError(
            f"{kernel.py_func.__name__} is decorated with @cuda.jit: give the function itself, without the decorator"
        )
    if not isinstance(kernel, types.FunctionType):
        raise KernelError(f"a kernel is a function, and this is a {type(kernel).__name__}")
    grid, block = check_shape(grid, block)
    num_threads = num_in(grid) * num_in(block)
    if max_threads and num_threads > max_threads:
        raise KernelError(
            f"grid {grid} of blocks {block} is {num_threads:,} threads, and the simulator, which is slow, takes at "
            f"most {max_threads:,}: use a smaller array"
        )
    try:
        names = list(inspect.signature(kernel).bind(*args).arguments)
    except TypeError as error:
        signature = f"{kernel.__name__}{inspect.signature(kernel)}"
        raise KernelError(f"{signature} cannot be called with {len(args)} arguments: {error}") from None
    for name, arg in zip(names, args):
        what = None
        if isinstance(arg, torch.Tensor):
            if arg.layout != torch.strided or not _is_of_numpy(arg.dtype):
                what = (
                    f"a tensor of {arg.layout if arg.layout != torch.strided else arg.dtype}, which numba does not have"
                )
            elif arg.device.type == "meta":
                what = "a tensor on the meta device, which has no elements"
            elif arg.ndim == 0:
                what = "a tensor without dimensions: give the number, .item(), or a tensor of one element"
        elif isinstance(arg, np.ndarray):
            if arg.dtype.kind not in "biufc":
                what = f"an array of {arg.dtype}: a kernel computes with numbers"
            elif arg.ndim == 0:
                what = "an array without dimensions: give the number, or an array of one element"
        elif not isinstance(arg, (bool, int, float, complex, np.number, np.bool_)):
            what = f"a {type(arg).__name__}: a kernel takes tensors, NumPy arrays and numbers"
        if what:
            raise KernelError(f"argument {name} is {what}")
    return grid, block, args


def _is_of_numpy(dtype):
    import torch

    try:
        torch.empty(0, dtype=dtype).numpy()
    except TypeError:
        return False
    return True


def pickled_kernel(kernel):
    """Return the kernel as bytes, with the notebook's functions and constants it uses. Raises KernelError."""
    require("numba kernels", "numba")

    class Pickler(payload.Pickler):
        def reducer_override(self, obj):
            if hasattr(obj, "py_func") and type(obj).__module__.startswith("numba"):  # a decorated helper
                return _helper, (obj.py_func,)
            return super().reducer_override(obj)

    stream = io.BytesIO()
    try:
        Pickler(stream).dump(kernel)
    except Exception as error:  # pickling may raise anything
        raise KernelError(
            f"{kernel.__name__} uses something that cannot be sent to the simulator's worker ({error}): a kernel uses "
            "its arguments, numbers and functions of the notebook"
        ) from None
    return stream.getvalue()


def _helper(function):
    """Return a decorated helper in the worker: the plain function for the simulator, compiled for numba's compiler."""
    from numba import config, cuda

    return function if config.ENABLE_CUDASIM else cuda.jit(device=True)(function)
