"""The kernel whose writers exercise 2.1 asks for, apart from the check: numba's import takes longer than an answer."""

from numba import cuda


def grid_stride(out):
    for i in range(cuda.grid(1), len(out), cuda.gridsize(1)):
        out[i] = 1
