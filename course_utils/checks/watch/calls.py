"""Record which functions an answer calls, for example to forbid a library, without reading its source."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ..expect import expect


@contextlib.contextmanager
def forbid(*modules: str, instead: str) -> Iterator[None]:
    """Raise Wrong if this thread calls a Python function of one of `modules` or their submodules in this block.

    A module may be followed by a function or class: "torch.utils.data.distributed:DistributedSampler". `instead` says
    what the task asks for.
    """
    rules = [name.partition(":")[::2] for name in modules]
    called: list[str] = []

    def watch(frame, event, argument):
        if event != "call" or called:
            return
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        for name, function in rules:
            is_ruled = _is_in(module, name) and function in ("", code.co_qualname.partition(".")[0])
            if is_ruled and not _is_imported(frame, name):
                called.append(f"{name}'s {code.co_qualname}")

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(before)
    expect(not called, f"{''.join(called)} was called, and the task is to do without: {instead}")


def _is_in(module, name):
    return f"{module}.".startswith(f"{name}.")


def _is_imported(frame, name):
    """Return whether the call happens while the module `name`, or a submodule, is first imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and _is_in(frame.f_globals.get("__name__"), name):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def recorded(*functions: Callable[..., object]) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """Yield {function's name: [arguments of each call, by name]} of this thread's calls in this block.

    It records Python functions and does not wrap them, so tracebacks stay as they are.
    """
    names = {function.__code__: function.__name__ for function in functions}
    calls: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}

    def watch(frame, event, argument):
        if event == "call" and frame.f_code in names:
            calls[names[frame.f_code]].append(dict(frame.f_locals))

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield calls
    finally:
        sys.setprofile(before)
