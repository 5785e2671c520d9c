"""Kernels in chapters: CUDA C++ compiled with NVRTC, and numba kernels on a GPU or in numba's simulator.

`nvrtc` compiles CUDA C++ and `cuda_cpp` launches it. `simulator` sends a numba kernel to a worker; there, `in_worker`
runs it on `cuda_names`, and `recorder` records its memory accesses. `on_gpu` uses the GPU if there is one, and
`for_gpu` checks that numba can compile a kernel for a GPU. numba and CUDA are imported only when needed: a worker must
be able to choose numba's simulator first.
"""

import numpy

from .cuda_cpp import CudaKernel
from .for_gpu import check_compiles
from .kernel_error import KernelError
from .nvrtc import compile_cuda
from .on_gpu import run
from .recorder import Race, Touch
from .simulator import Simulated, simulate, simulate_many, simulator_in_workers

__all__ = [
    "CudaKernel", "KernelError", "Race", "Simulated", "Touch", "check_compiles", "compile_cuda", "run", "simulate",
    "simulate_many", "simulator_in_workers",
]  # fmt: skip

# numba-cuda 0.30, the newest, looks it up as soon as it compiles anything, and NumPy 2.5 no longer has it.
if not hasattr(numpy, "row_stack"):
    numpy.row_stack = numpy.vstack
