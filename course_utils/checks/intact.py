"""Whether the functions that verdicts rest on are still the ones that they were before a student's code ran.

An answer runs in one process with the check that judges it, so this finds what is replaced and stays so, by accident or
in the usual ways. Who puts everything back in time is not found; no check in the same process could promise that.
"""

import contextlib
import inspect
import sys
import types

from .. import cells
from .expect import Wrong

_OTHER_FUNCTIONS = {types.BuiltinFunctionType, types.MethodDescriptorType, classmethod, staticmethod}
_COURSE = ("course_utils.chapters", "course_utils.checks", "course_utils.grade", "course_utils.launch")
# The rest of launch has done its work there.
_IN_WORKERS = ("course_utils.chapters", "course_utils.checks", "course_utils.launch.worker.worker")
_LIBRARIES = (
    "torch",
    "torch.distributed",
    "torch.testing",
    "torch.linalg",
    "torch.nn.functional",
    "numpy",
    "math",
    "builtins",
    "json",
    "hmac",
)
_HARMLESS = {"load"}  # torch.load with other defaults is usual, and what a file holds is compared afterwards


def functions(course=_COURSE):
    """{module or class: {name: (value, its code)}} of functions and classes on which verdicts rest.

    Of the libraries those that the checks name: an answer may give a tensor another `__repr__`. Every worker of every
    check gathers this, right after the fork, where also what is only looked at has to be copied: so no more is looked
    at than must be.
    """
    found = {}
    modules = [sys.modules[name] for name in course if name in sys.modules]
    for module in modules:  # which grows; to go through sys.modules would touch thousands
        inner = f"{module.__name__}."
        modules += [
            value
            for value in vars(module).values()
            if type(value) is types.ModuleType and value.__name__.startswith(inner)
        ]
    for module in modules:
        found[module] = _counted(vars(module))
        for value, _ in list(found[module].values()):
            if isinstance(value, type) and value not in found and value.__module__.startswith(_COURSE):
                found[value] = _counted(vars(value))
    codes = {id(code): code for kept in found.values() for _, code in kept.values() if code is not None}
    named = _names(codes.values()) - _HARMLESS
    owners = [sys.modules[name] for name in _LIBRARIES if name in sys.modules]
    if (torch := sys.modules.get("torch")) is not None:
        owners += [torch.Tensor, torch.nn.Module]
    for owner in owners:
        there = set().union(*(named & vars(each).keys() for each in _lines(owner)))
        found[owner] = _counted({name: _attribute(owner, name) for name in there})
    return found


def replaced(before):
    """The names of those of `functions()` that are others now, unless it was a library that wrapped them, as torch
    does.
    """
    names = []
    for owner, values in before.items():
        for name, (value, code) in values.items():
            new = _attribute(owner, name)
            if (new is not value or _code(new) is not code) and not _is_wrapped(new, code):
                names.append(f"{owner.__name__}.{name}")
    return names


@contextlib.contextmanager
def intact():
    """Raise Wrong if what is run in this block replaces a function that the check itself uses."""
    before = functions(_IN_WORKERS)
    yield
    if names := replaced(before):
        raise Wrong(f"your function replaces {', '.join(names[:3])}, which the check itself uses: leave it as it is")


def _counted(names):
    """{name: (value, its code)} of those values of {name: value} that are functions or classes."""
    found = {}
    for name, value in names.items():
        kind = type(value)
        if kind is types.FunctionType:
            found[name] = value, value.__code__
        elif kind in _OTHER_FUNCTIONS or isinstance(value, type):
            found[name] = value, _code(value)
    return found


def _lines(owner):
    """Where names of a module or class are looked up, one after the other."""
    return owner.__mro__ if isinstance(owner, type) else (owner,)


def _attribute(owner, name):
    """What stands there, no descriptor asked, no module's __getattr__ called."""
    for each in _lines(owner):
        if name in vars(each):
            return vars(each)[name]
    return None


def _is_wrapped(new, code):
    """Whether a library's function stands around the one that had this code."""
    own_code, outer = (_code(inspect.unwrap(new)), _code(new)) if callable(new) else (None, None)
    return own_code is code and code is not None and outer is not None and not cells.is_own(outer.co_filename)


def _code(value):
    return getattr(getattr(value, "__func__", value), "__code__", None)


def _names(codes):
    """The names that functions' codes, and what is nested in them, take from anywhere."""
    names, codes = set(), list(codes)
    for code in codes:  # which grows
        names.update(code.co_names)
        codes += [constant for constant in code.co_consts if type(constant) is types.CodeType]
    return names
