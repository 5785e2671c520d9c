"""Which functions an answer calls: a task that forbids a library is watched, and its source is not read."""

import contextlib
import sys

from ..expect import expect


@contextlib.contextmanager
def forbid(*modules, instead):
    """Raise Wrong if a Python function of one of `modules` (by name, what is below them too) is called inside, by this
    thread.

    A module may be followed by a function or class: "torch.utils.data.distributed:DistributedSampler". `instead` says
    what is asked.
    """
    rules, called = [name.partition(":")[::2] for name in modules], []

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
    """Whether this happens only because a module of that name, or one below it, is being imported
    for the first time.
    """
    while frame is not None:
        if frame.f_code.co_name == "<module>" and _is_in(frame.f_globals.get("__name__"), name):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def recorded(*functions):
    """Give {function's name: [the arguments of each call, by name]} of this thread's calls of these Python functions
    inside.

    Nothing is put around the functions, so a traceback shows none of it.
    """
    names = {function.__code__: function.__name__ for function in functions}
    calls = {name: [] for name in names.values()}

    def watch(frame, event, argument):
        if event == "call" and frame.f_code in names:
            calls[names[frame.f_code]].append(dict(frame.f_locals))

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield calls
    finally:
        sys.setprofile(before)
