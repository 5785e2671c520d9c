"""Check that numba can compile a kernel for a GPU, without a GPU; the simulator accepts more, being Python."""

import contextlib
import inspect
import os
import re
import types
import warnings

from .. import cells
from ..launch import WorkerError, launch, unannounced
from .kernel_error import KernelError
from .on_gpu import codes
from .simulator import pickled_kernel

_CAPABILITY = (7, 5)  # Turing, the oldest that all CUDA versions since support
_TIMEOUT_S = 60  # compiling takes 1 to 2 s

# (pattern in numba's message, the student's mistake). Groups of the pattern must be names of the student's; they fill
# the braces.
_CAUSES = (
    (
        "Untyped global name '(.+?)':.* <class 'function'>",
        "{} is an ordinary Python function, not compiled for a GPU itself",
    ),
    ("Untyped global name '(.+?)':.* <class '(?:type|builtin.*)'>", "numba has no {} for a GPU"),
    ("Untyped global name '(.+?)'", "{} is nothing that a GPU's threads can use"),
    ("<ufunc '(.+?)'>", "numba has no {} of NumPy's for a GPU"),
    ("unresolved_ref", "it calls a function that calls itself"),
    ("IMPORT_NAME", "it imports something, and a GPU's threads can import nothing"),
    ("STORE_GLOBAL", "it gives a new value to a name outside, and a GPU's threads know such names as constants"),
    ("exception_match|set_try_status", "it catches an exception, and a GPU's threads raise none, whatever they do"),
    ("yield", "it makes a generator"),
    ("readonly array", "it writes into an array that is no argument: a GPU's threads know such arrays as constants"),
    ("Unknown attribute '(.+?)' of type Module\\(<module '(.+?)'", "{1}.{0} runs on the host only"),
    ("Unknown attribute '(.+?)' of type array", "an array has no {} on a GPU"),
    ("build_list|List\\(|list\\(", "it uses a list, for which a GPU's threads have no memory"),
    ("build_map|DictType", "it uses a dict, for which a GPU's threads have no memory"),
    ("build_set|[Ss]et\\(", "it uses a set, for which a GPU's threads have no memory"),
    ("unicode|'str'", "it makes a text"),
    ("NRT required", "it makes something that needs memory, which a GPU's threads cannot ask for"),
    ("Type of variable '\\$", "numba cannot tell the type of a value there: take the expression apart"),
)


def check_compiles(kernel, *args):
    """Compile `kernel` for a launch with `args` on a GPU; no GPU is needed.

    Raises KernelError with the line if numba cannot compile it. Raises nothing if numba can compile no kernel at all,
    as when a part of CUDA is missing, or if compiling takes longer than the limit.
    """
    bound = inspect.signature(kernel).bind(*args)
    bound.apply_defaults()
    try:
        with unannounced():
            found = launch(
                _compile, pickled_kernel(kernel), bound.args, world_size=1, backend=None, timeout=_TIMEOUT_S
            )[0]
    except WorkerError as error:
        if error.timed_out:
            return
        raise KernelError(f"the compiler's worker failed:\n{error.text}") from None
    if found is not None:
        cause, frames = found
        place = cells.own_line(frames)
        raise KernelError(cause + (f"\n  at {place}" if place else ""))


def _compile(pickled, args):
    """Return None, or the cause and frames, (file name, line number, function), of an error; runs in a worker."""
    os.environ.pop("NUMBA_ENABLE_CUDASIM", None)  # before unpickling the kernel, which may import numba
    import cloudpickle
    import numba
    import torch
    from numba import cuda
    from numba.cuda import compiler, dispatcher

    # Helpers are compiled for the current device; there may be none.
    for module in (compiler, dispatcher):
        module.get_current_device = lambda: types.SimpleNamespace(compute_capability=_CAPABILITY)
    kernel = cloudpickle.loads(pickled)
    warnings.simplefilter("ignore")  # a cell shows a worker's output
    kinds = [numba.typeof(arg.detach().numpy() if isinstance(arg, torch.Tensor) else arg) for arg in args]
    try:
        cuda.compile_ptx(kernel, numba.void(*kinds), cc=_CAPABILITY)
    except Exception as error:  # numba's own errors, and any of its internals
        try:
            cuda.compile_ptx(_nothing, numba.void(), cc=_CAPABILITY)
        except Exception:  # a part of CUDA is missing, or numba does not fit another package: not the kernel's fault
            return None
        said = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()  # numba colours its messages
        return _cause(said, kernel, error), [_frame(said, kernel.__code__, error.__traceback__)]
    return None


def _nothing():
    """A kernel that numba can compile if it can compile any."""


def _cause(said, kernel, error):
    own = {name for code in codes(kernel.__code__) for name in (*code.co_names, *code.co_varnames)}
    if f"name '{kernel.__name__}'" in said:
        return "only the host has the kernel itself: it can neither call itself nor keep anything there"
    for pattern, words in _CAUSES:
        if (found := re.search(pattern, said)) and own.issuperset(found.groups()):
            return words.format(*found.groups())
    lines = [line for line in said.splitlines() if line and not line.startswith("Failed in")]
    return f"numba says {lines[0] if lines else type(error).__name__!r}"


def _frame(said, code, trace):
    """Return the frame, (file name, line number, function), of the line that numba failed on.

    It is the innermost `loc` in numba's frames, or else the line in its message.
    """
    first, last = code.co_firstlineno, max(line or 0 for each in codes(code) for _, _, line in each.co_lines())
    found = [int(line) for pair in re.findall(r"line (\d+):|\((\d+)\)$", said, re.MULTILINE) for line in pair if line]
    found = [(code.co_filename, line) for line in found if first < line <= last]
    while trace is not None:
        for value in list(trace.tb_frame.f_locals.values()):
            with contextlib.suppress(Exception):  # some of numba's objects raise here
                place = getattr(value, "loc", value)
                if type(place).__name__ == "Loc" and cells.is_own(place.filename):
                    found.append((place.filename, place.line))
        trace = trace.tb_next
    first = code.co_filename, first
    return *([place for place in found if place != first] or [first])[-1], code.co_name
