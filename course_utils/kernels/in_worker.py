"""Run numba's simulator in a worker, one thread at a time, in a fixed order.

numba starts all threads of a block at once and leaves their order to the operating system, so runs differ, and each
barrier costs milliseconds of polling. Here, a thread runs until it ends or waits in `cuda.syncthreads()`, then the next
one runs. So the order of accesses is the same in every run, and a barrier that some threads never reach is found.
"""

import functools
import itertools
import os
import sys
import threading
import time
import traceback
import types

from .cuda_names import CudaNames
from .recorder import Array, BadAccess, Observer

_STACK_BYTES = 1 << 20  # per thread; 1024 threads would reserve 8 MiB each


class Refused(Exception):
    """The kernel failed: what happened, the frames (file name, line number, function), and the exception, if any.

    `advice` is for the caller of the launch.
    """

    def __init__(self, what, frames=(), error=None, advice=""):
        super().__init__(what)
        self.what, self.frames, self.advice = what, tuple(frames), advice
        self.exception = ("", "", "") if error is None else (type(error).__module__, type(error).__name__, str(error))


def run_cases(pickled, cases, timeout):
    """Run the pickled kernel on each `(grid, block, args)`.

    Returns a list of (args afterwards, touches, num_touches, races), and None or, for the first case that fails, (what
    went wrong, frames, (module and name of the exception, its message), advice).
    """
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # before unpickling the kernel, which may import numba
    import cloudpickle

    threading.stack_size(_STACK_BYTES)
    kernel = cloudpickle.loads(pickled)
    results = []
    try:
        for grid, block, args in cases:
            results.append(_run_case(kernel, grid, block, args, timeout))
    except Refused as refused:
        return results, (refused.what, refused.frames, refused.exception, refused.advice)
    return results, None


def _run_case(kernel, grid, block, args, timeout):
    import inspect

    import numpy as np
    import torch
    from numba import cuda
    from numba.cuda.simulator import kernel as simulator

    observer = Observer()
    launch = _Launch(kernel, grid, block, observer, timeout)
    watched = []
    for name, arg in zip(inspect.signature(kernel).parameters, args):
        values = arg.detach().numpy() if isinstance(arg, torch.Tensor) else arg
        watched.append(Array(values, observer, name) if isinstance(values, np.ndarray) else values)

    class Manager(simulator.BlockManager):
        def run(self, grid_point, *args):
            launch.run_block(self, grid_point, args)

    _put_in_place(kernel, CudaNames(cuda, simulator, launch), set())
    simulator.BlockManager = Manager
    cuda.jit(kernel)[grid, block](*watched)
    return args, observer.touches, observer.num_touches, observer.races


def _put_in_place(function, ours, done):
    """Replace numba.cuda with `ours` in the kernel and its helpers; `done` has the ids of functions done."""
    from numba import cuda

    done.add(id(function))
    for cell in function.__closure__ or ():
        if cell.cell_contents is cuda or isinstance(cell.cell_contents, CudaNames):
            cell.cell_contents = ours
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if value is cuda or isinstance(value, CudaNames):
            function.__globals__[name] = ours
        elif isinstance(value, types.FunctionType) and id(value) not in done:
            _put_in_place(value, ours, done)


class _Launch:
    """One simulated launch: runs blocks one after another, each in phases between barriers."""

    def __init__(self, kernel, grid, block, observer, timeout):
        self.kernel, self.observer, self.timeout = kernel, observer, timeout
        self.num_dims = [len(shape) if isinstance(shape, tuple) else 0 for shape in (grid, block)]
        self.deadline = time.monotonic() + timeout
        self.paused = threading.Semaphore(0)  # released when a thread ends or waits
        self.shared = {}

    def run_block(self, manager, grid_point, args):
        self.shared = {}
        Thread = _thread_class()
        depth, height, width = reversed(manager._block_dim)
        threads = [
            Thread(self, manager, grid_point, (x, y, z), args)
            for z, y, x in itertools.product(range(depth), range(height), range(width))
        ]
        running = threads
        while running:
            for thread in running:
                self._let_run(thread)
            self._check_barrier(running)
            running = [thread for thread in running if thread.barrier]
            self.observer.phase += 1

    def _let_run(self, thread):
        self.observer.block, self.observer.thread = thread.names
        thread.go()
        if not self.paused.acquire(timeout=max(0, self.deadline - time.monotonic())):
            frames = _frames(traceback.walk_stack(sys._current_frames()[thread.ident]))[::-1]
            raise Refused(
                f"no end after {self.timeout:g} s, so the kernel was stopped in {thread}: does its loop come to "
                "an end?",
                frames,
                advice="If it only needs longer: fewer threads, or a smaller array.",
            )
        if thread.error is not None:
            raise _refusal(thread)

    def _check_barrier(self, threads):
        waiting = [thread for thread in threads if thread.barrier]
        if not waiting:
            return
        for other in threads:
            if other.barrier != waiting[0].barrier:
                does = f"waits at the one in line {other.barrier[1]}" if other.barrier else "has ended without it"
                raise Refused(
                    f"{waiting[0]} waits in cuda.syncthreads(), and {other} {does}: every thread of a block has to "
                    "come to each barrier, so it must not stand in a branch that only some take, or after a return",
                    [waiting[0].barrier],
                )

    def name(self, thread_idx, block_idx):
        """Return (block, thread) as the student counts them: ints if grid and block were ints."""
        counted = []
        for point, num_dims in zip((block_idx, thread_idx), self.num_dims):
            point = tuple(point)
            counted.append(point[:num_dims] if num_dims > 1 else point[0])
        return tuple(counted)


def _refusal(thread):
    error = thread.error
    frames = _frames(traceback.walk_tb(error.__traceback__))
    if isinstance(error, BadAccess):
        return Refused(f"{thread} {error}", frames)
    described = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if "module 'numba.cuda' has no attribute" in described:
        described += "; a kernel knows numba.cuda by a name of the notebook, from a cell with `from numba import cuda`"
    if "Dim3" in described:
        described += "; an index is one of its numbers: cuda.blockIdx.x, cuda.blockDim.x and so on"
    if isinstance(error, NameError) and error.name in ("threadIdx", "blockIdx", "blockDim", "gridDim", "syncthreads"):
        described += f"; in Python it is called cuda.{error.name}"
    return Refused(f"{thread}: {described}", frames, error)


def _frames(walked):
    return [(frame.f_code.co_filename, number, frame.f_code.co_name) for frame, number in walked]


@functools.cache
def _thread_class():
    """Return the simulator's thread class, extended; it is made here because only the worker may import numba."""
    import numpy as np
    from numba.cuda.simulator import kernel as simulator

    class Thread(simulator.BlockThread):
        def __init__(self, launch, manager, block_idx, thread_idx, args):
            super().__init__(None, manager, block_idx, thread_idx, False)
            self.launch, self.args = launch, args
            self.names = launch.name(thread_idx, block_idx)
            self.error = self.barrier = None
            self.may_go = threading.Semaphore(0)

        def go(self):
            if self.ident is None:
                self.start()
            else:
                self.barrier = None
                self.may_go.release()

        def run(self):
            try:
                with np.errstate(all="ignore"):  # a GPU reports no overflow or division by zero
                    value = self.launch.kernel(*self.args)
                if value is not None:
                    what = f"returns a {type(value).__name__}"
                    raise BadAccess(f"{what}, but a kernel returns nothing: it writes into its arguments")
            except BaseException as error:  # even SystemExit: _let_run reports it
                self.error = error
            self.error = self.launch.observer.refused or self.error
            self.launch.paused.release()

        def syncthreads(self):
            frame = sys._getframe(1)
            while frame.f_globals.get("__name__", "").startswith(("numba.", "course_utils.kernels")):
                frame = frame.f_back
            self.barrier = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
            self.launch.paused.release()
            self.may_go.acquire()

        def __str__(self):
            block, thread = self.names
            return f"thread {thread} of block {block}"

    return Thread
