"""Check that a GPU can launch a grid and block."""

import math

from .kernel_error import KernelError

MAX_BLOCK_THREADS = 1024  # on every GPU so far
_MAX_BLOCK = (1024, 1024, 64)
_MAX_GRID = (2**31 - 1, 65535, 65535)


def check_shape(grid, block):
    """Return grid and block, as ints, or as tuples of ints if tuples were given. Raises KernelError."""
    grid = _check("grid", "blocks", grid, _MAX_GRID)
    block = _check("block", "threads", block, _MAX_BLOCK)
    if num_in(block) > MAX_BLOCK_THREADS:
        raise KernelError(
            f"block is {block}, {num_in(block):,} threads, and a block has at most {MAX_BLOCK_THREADS:,}: take "
            "more blocks instead"
        )
    return grid, block


def num_in(shape):
    """Return the number of blocks or threads in a shape."""
    return math.prod(shape) if isinstance(shape, tuple) else shape


def _check(what, unit, shape, limits):
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    is_whole = all(hasattr(size, "__index__") and not isinstance(size, bool) for size in sizes)
    if not is_whole or not 1 <= len(sizes) <= 3:
        hint = " (math.ceil, or //, makes a whole number)" if any(isinstance(size, float) for size in sizes) else ""
        raise KernelError(
            f"{what} is {shape!r}; it is the number of {unit}: a whole number, or a tuple of up to three{hint}"
        )
    sizes = tuple(int(size) for size in sizes)
    for axis, size, limit in zip("xyz", sizes, limits):
        if size < 1:
            raise KernelError(f"{what} is {shape!r}; a launch has at least one of its {unit}")
        if size > limit and what == "grid":
            raise KernelError(f"grid is {shape!r}; along {axis} a GPU takes at most {limit:,} blocks")
        if size > limit and axis == "z":
            raise KernelError(f"block is {shape!r}; along z a block has at most {limit} threads")
    return sizes if isinstance(shape, (tuple, list)) else sizes[0]
