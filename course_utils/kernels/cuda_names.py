"""The `cuda` module of a simulated kernel: numba's, with recorded memory and atomics."""

import ast
import linecache
import sys

from .recorder import Array, BadAccess

_SHARED_BYTES = 48 * 1024  # static shared memory of a block, on every GPU


class CudaNames:
    """The object that replaces `cuda` in a kernel: numba's simulated module with recorded memory and atomics."""

    def __init__(self, module, simulator, launch):
        self._module, self._simulator = module, simulator
        self.shared, self.local = _Memory(launch, is_shared=True), _Memory(launch, is_shared=False)
        self.atomic = _Atomic(simulator, launch.observer)

    def __getattr__(self, name):
        for there in (self._simulator._get_kernel_context(), self._module):
            if hasattr(there, name):
                return getattr(there, name)
        raise AttributeError(f"cuda.{name} is not in the simulator")


class _Memory:
    """`cuda.shared`, with one array per block, or `cuda.local`, with one array per thread."""

    def __init__(self, launch, is_shared):
        self._launch, self._is_shared = launch, is_shared

    def array(self, shape, dtype, alignment=None):
        import numpy as np

        frame = sys._getframe(1)
        place = (frame.f_code, frame.f_lasti)  # all threads of a block share the array made here
        if self._is_shared and place in self._launch.shared:
            return self._launch.shared[place]
        _refuse_variable_size(frame)
        values = np.empty(shape, _numpy_type(dtype))
        # Fill uninitialised memory with values that do not look like results.
        values.fill({"f": np.nan, "c": np.nan, "b": True}.get(values.dtype.kind, 77))
        array = Array(values, self._launch.observer, is_inner=True)
        if self._is_shared:
            self._launch.shared[place] = array
            if sum(each._values.nbytes for each in self._launch.shared.values()) > _SHARED_BYTES:
                raise BadAccess(f"asks for more than the {_SHARED_BYTES:,} bytes of shared memory that a block has")
        return array


def _numpy_type(dtype):
    import numpy as np
    from numba.cuda.np import numpy_support

    try:
        return np.dtype(dtype) if isinstance(dtype, (type, np.dtype)) else numpy_support.as_dtype(dtype)
    except Exception:  # the class differs between numba's versions
        raise BadAccess(
            f"makes an array of {dtype!r}, and numba's types are called numba.float32, numba.int64, …"
        ) from None


def _refuse_variable_size(frame):
    """Raise BadAccess for `cuda.shared.array(n, …)` if `n` is known only at launch.

    On a GPU, numba refuses it too, with a long message.
    """
    call = _call_at(frame)
    sizes = call and [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "shape")]
    for node in ast.walk(ast.Tuple(sizes or [])):
        name = getattr(node, "id", None)
        is_argument = name in frame.f_code.co_varnames[: frame.f_code.co_argcount]
        if is_argument or isinstance(frame.f_globals.get(name), CudaNames):
            raise BadAccess(
                f"makes an array whose size is taken from {name}, which is known only when the kernel runs: memory is "
                "set aside when it is compiled, so the size is a number, or a constant of the notebook"
            )


def _call_at(frame):
    """Return the call that the frame executes, as a syntax tree, or None if its source is unknown."""
    first, last, start, end = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    lines = [
        linecache.getline(frame.f_code.co_filename, number).encode() for number in range(first or 1, (last or 0) + 1)
    ]
    if not any(lines) or start is None:
        return None
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        tree = ast.parse(b"".join(lines), mode="eval").body
    except SyntaxError:
        return None
    return tree if isinstance(tree, ast.Call) else None


class _Atomic:
    """`cuda.atomic`, which marks its accesses as atomic: they have an order, though an unspecified one."""

    def __init__(self, simulator, observer):
        self._simulator, self._observer = simulator, observer

    def __getattr__(self, name):
        operation = getattr(self._simulator._get_kernel_context().atomic, name)

        def watched(*args):
            self._observer.in_atomic = True
            try:
                return operation(*args)
            finally:
                self._observer.in_atomic = False

        return watched
