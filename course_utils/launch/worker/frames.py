"""A thread's stack, and a description of the variables of the student's functions, as text that is cheap to send.

Nothing is copied: a tensor is described by its shape, dtype and device, and by its values only if it is tiny and on the
CPU. No GPU is accessed, since it may hang.
"""

import collections
import contextlib
import itertools
import pathlib
import sys
import threading
import types

from ... import cells
from ..forkserver.protocol import Frame

_NAMES = 40  # of a frame
_TEXT_CHARS = 120
_OWN_FRAMES = 10  # the innermost; a recursion has thousands
_LEVELS = 2  # of nested containers
_ITEMS = 6  # shown of a container; larger tensors show no values
_CHARS = 80
_BITS = 200
_NOISE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type)
_SEQUENCES: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
    collections.deque: ("deque([", "])"),
}
_MAPPINGS: dict[type, str] = {dict: "", collections.OrderedDict: "OrderedDict", collections.defaultdict: "defaultdict"}
_MAPPINGS[collections.Counter] = "Counter"


def of_traceback(trace: types.TracebackType | None) -> tuple[Frame, ...]:
    """Return the Frames of a traceback, outermost first."""
    found = []
    while trace is not None:
        found.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return _described(found)


def of_main_thread(with_locals: bool = True) -> tuple[Frame, ...]:
    """Return the Frames of the main thread, outermost first. Called from another thread."""
    frame, found = sys._current_frames().get(threading.main_thread().ident or 0), []
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
    """Return {name: description} of a frame's variables, in the order in which the function assigned them.

    For a cell's own frame, return only the names that the cell mentions: it shares its namespace with all other cells.
    """
    try:
        values = dict(frame.f_locals)
    except Exception:  # an unusual namespace must not hide the error that is being reported
        return {}
    if frame.f_code.co_name == "<module>":
        values = {name: values[name] for name in frame.f_code.co_names if name in values}
    items = [
        (name, value)
        for name, value in values.items()
        if isinstance(name, str) and not name.startswith(("__", ".")) and not issubclass(type(value), _NOISE)
    ]
    held = {name: in_words(value) for name, value in items[:_NAMES]}
    if len(items) > _NAMES:
        held["…"] = f"{len(items) - _NAMES} more names"
    return held


def in_words(value: object) -> str:
    """Describe a value briefly without running any of the student's code, such as a `__repr__`."""
    try:
        text = _words(value, _LEVELS)
    except Exception:  # such as a half-initialised object, or a dict that is being changed
        text = f"a {type(value).__name__}"
    return text if len(text) <= _TEXT_CHARS else f"{text[: _TEXT_CHARS - 1]}…"


def _words(value, levels):
    """Describe a value by its exact type, since a subclass may override methods with code of its own."""
    kind, torch = type(value), sys.modules.get("torch")
    if torch is not None and issubclass(kind, torch.Tensor):
        return _tensor(value)
    if torch is not None and issubclass(kind, torch.nn.Module):
        return f"{kind.__name__} module"
    if any(kind is each for each in (bool, float, complex, range, type(None))):
        return repr(value)
    if kind is int:
        return repr(value) if value.bit_length() <= _BITS else f"an int of {value.bit_length():,} bits"
    if kind is str:
        return repr(value) if len(value) <= _CHARS else f"{value[:_CHARS]!r}… ({len(value):,} characters)"
    if kind is bytes or kind is bytearray:
        return f"{kind.__name__} of {len(value):,}: {bytes(value[:_ITEMS])!r}"
    if any(kind is each for each in _SEQUENCES):
        return _sequence(value, levels)
    if any(kind is each for each in _MAPPINGS):
        return _mapping(value, levels)
    if kind.__module__ == "numpy" and hasattr(value, "dtype"):
        is_short = not value.shape and not value.dtype.hasobject and value.dtype.itemsize <= _CHARS
        return repr(value) if is_short else f"array {tuple(value.shape)} {value.dtype}"
    if kind is pathlib.PosixPath or torch is not None and issubclass(kind, (torch.dtype, torch.device, torch.Size)):
        return repr(value)
    return f"a {kind.__name__}"


def _sequence(values, levels):
    opening, closing = _SEQUENCES[type(values)]
    if not values:
        return repr(values)
    if not levels:
        return f"{opening}…{closing}"
    parts = [_words(value, levels - 1) for value in itertools.islice(values, _ITEMS)]
    return opening + ", ".join(parts + _rest(values)) + closing


def _mapping(values, levels):
    name = _MAPPINGS[type(values)]
    if not levels and values:
        return f"{name}{{…}}"
    items = itertools.islice(values.items(), _ITEMS)
    parts = [f"{_words(key, levels - 1)}: {_words(value, levels - 1)}" for key, value in items]
    return f"{name}{{{', '.join(parts + _rest(values))}}}"


def _rest(values):
    return [f"… ({len(values):,} in all)"] if len(values) > _ITEMS else []


def _tensor(value):
    """Return `tensor (2, 3) float32 cpu`, with the values if they are few and on the CPU."""
    import torch

    with torch._C.DisableTorchFunctionSubclass():
        text = f"tensor {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')} {value.device}"
    if type(value) in (torch.Tensor, torch.nn.Parameter) and value.device.type == "cpu" and value.numel() <= _ITEMS:
        with contextlib.suppress(Exception):  # a sparse tensor, or one freed by FSDP
            return f"{text}: {_numbers(value.detach().tolist())}"
    return text


def _numbers(values):
    if isinstance(values, list):
        return f"[{', '.join(map(_numbers, values))}]"
    return f"{values:.4g}" if isinstance(values, float) else repr(values)
