"""Kernels in chapters: CUDA C++ compiled with NVRTC, and numba kernels on the GPU or in numba's simulator.

`nvrtc` compiles, `cuda_cpp` launches what was compiled. `simulator` sends a numba kernel to a worker, `in_worker` runs
it there on `cuda_names`, `recorder` watches what it touches; `on_gpu` takes the GPU where there is one, and `for_gpu`
asks numba whether a GPU could. numba and CUDA are imported when they are needed, not before: a worker must be free to
choose numba's simulator.
"""

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
