"""Where a thread is, and what variables of the student's functions hold there, as text that is cheap to make and send.

Nothing is copied: a tensor is described by its shape, dtype and device, and by its values only if it is tiny and on the
CPU. A GPU is not asked for anything, since it may be the one that hangs.
"""

import contextlib
import functools
import reprlib
import sys
import threading
import types

from .. import cells
from .protocol import Frame

_NAMES = 40  # of a frame
_TEXT_CHARS = 120
_OWN_FRAMES = 10  # the innermost; a recursion has thousands
_VALUES = 6  # of a tensor that has at most this many
_NOISE = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)


def of_traceback(trace):
    """Return the Frames of a traceback, outermost first."""
    found = []
    while trace is not None:
        found.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return _described(found)


def of_main_thread(with_locals=True):
    """Return the Frames of the main thread, outermost first; for calls from another thread."""
    frame, found = sys._current_frames().get(threading.main_thread().ident), []
    while frame is not None:
        found.append((frame, frame.f_lineno))
        frame = frame.f_back
    return _described(found[::-1], with_locals)


def _described(found, with_locals=True):
    own = [i for i, (frame, _) in enumerate(found) if cells.is_own(frame.f_code.co_filename)]
    told = set(own[-_OWN_FRAMES:]) if with_locals else ()
    return tuple(
        Frame(frame.f_code.co_filename, line or 0, frame.f_code.co_name, _held(frame) if i in told else ())
        for i, (frame, line) in enumerate(found)
    )


def _held(frame):
    """{name: text} of a frame's variables, in the order in which the function assigned them."""
    items = [
        (name, value)
        for name, value in dict(frame.f_locals).items()
        if not name.startswith(("__", ".")) and not isinstance(value, _NOISE)
    ]
    held = {name: in_words(value) for name, value in items[:_NAMES]}
    if len(items) > _NAMES:
        held["…"] = f"{len(items) - _NAMES} more names"
    return held


def in_words(value):
    """Describe a value briefly without running any of the student's code, such as a `__repr__`."""
    try:
        text = _Words().repr(value)
    except Exception:  # a library's half-initialised object
        text = f"a {type(value).__name__}"
    return text if len(text) <= _TEXT_CHARS else f"{text[: _TEXT_CHARS - 1]}…"


class _Words(reprlib.Repr):
    """reprlib shortens containers and strings; other objects are named by type only, unless known to be harmless."""

    def __init__(self):
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 2, 80, 80, 40

    def repr1(self, value, level):
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return _tensor(value)
        if torch is not None and isinstance(value, torch.nn.Module):
            return f"{type(value).__name__} module"
        if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
            return f"array {tuple(value.shape)} {value.dtype}" if value.shape else repr(value)
        # reprlib dispatches on the name of a class, which a student's class may share
        if type(value).__module__ == "builtins" or type(value) in _harmless():
            return super().repr1(value, level)
        return f"a {type(value).__name__}"


@functools.cache
def _harmless():
    import collections
    import pathlib

    kinds = [collections.deque, collections.OrderedDict, collections.Counter, pathlib.PosixPath]
    torch = sys.modules.get("torch")
    return {*kinds, *(() if torch is None else (torch.dtype, torch.device, torch.Size))}


def _tensor(value):
    """`tensor (2, 3) float32 cpu`, with its values if they are few and on the CPU."""
    import torch

    text = f"tensor {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')} {value.device}"
    if type(value) in (torch.Tensor, torch.nn.Parameter) and value.device.type == "cpu" and value.numel() <= _VALUES:
        with contextlib.suppress(Exception):  # sparse, freed by FSDP
            values = value.detach().tolist()
            return f"{text}: {_numbers().repr(values)}"
    return text


def _numbers():
    numbers = reprlib.Repr()
    numbers.maxlist = _VALUES
    numbers.repr_float = lambda number, _: f"{number:.4g}"
    return numbers
