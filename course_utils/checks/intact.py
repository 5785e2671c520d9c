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

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)
_COURSE = ("course_utils.checks", "course_utils.grade", "course_utils.launch")
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


def functions():
    """{(module or class, name): (value, its code)} of functions and classes on which verdicts rest.

    Of the libraries those that the checks name: an answer may give a tensor another `__repr__`.
    """
    course = [module for name, module in list(sys.modules.items()) if name.startswith(_COURSE)]
    found = {}
    for module in course:
        for owner in (module, *(value for value in vars(module).values() if _is_of(value, module))):
            found |= {(owner, name): (value, _code(value)) for name, value in vars(owner).items() if _counts(value)}
    named = set().union(*(_names(code) for _, code in found.values() if code is not None)) - _HARMLESS
    owners = [sys.modules[name] for name in _LIBRARIES if name in sys.modules]
    if (torch := sys.modules.get("torch")) is not None:
        owners += [torch.Tensor, torch.nn.Module]
    for owner in owners:
        for name in named:
            value = _attribute(owner, name)
            if _counts(value):
                found[owner, name] = (value, _code(value))
    return found


def replaced(before):
    """The names of those of `functions()` that are others now, unless it was a library that wrapped them, as torch
    does.
    """
    names = []
    for (owner, attribute), (value, code) in before.items():
        new = _attribute(owner, attribute)
        if new is value and _code(new) is code:
            continue
        own_code, outer = (_code(inspect.unwrap(new)), _code(new)) if callable(new) else (None, None)
        is_wrapped = own_code is code and code is not None and outer is not None and not cells.is_own(outer.co_filename)
        if not is_wrapped:
            names.append(f"{owner.__name__}.{attribute}")
    return names


@contextlib.contextmanager
def intact():
    """Raise Wrong if what is run in this block replaces a function that the check itself uses."""
    before = functions()
    yield
    if names := replaced(before):
        raise Wrong(f"your function replaces {', '.join(names[:3])}, which the check itself uses: leave it as it is")


def _is_of(value, module):
    return isinstance(value, type) and value.__module__ == module.__name__


def _attribute(owner, name):
    """What stands there, no descriptor asked, no module's __getattr__ called."""
    for each in owner.__mro__ if isinstance(owner, type) else (owner,):
        if name in vars(each):
            return vars(each)[name]
    return None


def _counts(value):
    return isinstance(value, (*_FUNCTIONS, type, classmethod, staticmethod))


def _code(value):
    return getattr(getattr(value, "__func__", value), "__code__", None)


def _names(code):
    """The names that a function's code, and what is nested in it, takes from anywhere."""
    nested = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, nested))
