"""Detect whether a student's code has replaced functions that checks depend on.

An answer runs in one process with the check that judges it. This finds replacements that persist, made by accident or
in the usual ways. Code that restores everything in time is not found; no check in the same process could do that.
"""

import contextlib
import inspect
import sys
import types
from collections.abc import Collection, Iterator

from .. import cells
from .expect import Wrong

_OTHER_FUNCTIONS = {types.BuiltinFunctionType, types.MethodDescriptorType, classmethod, staticmethod}
_COURSE = ("course_utils.chapters", "course_utils.checks", "course_utils.grade", "course_utils.launch")
# The other modules of launch are no longer needed in a worker.
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
_HARMLESS = {"load"}  # new defaults for torch.load are usual; its results are checked


Functions = dict[types.ModuleType | type, dict[str, tuple[object, types.CodeType | None]]]


def functions(course: Collection[str] = _COURSE) -> Functions:
    """Return {module or class: {name: (value, its code)}} of the functions and classes that checks depend on.

    From libraries, only names that the checks use are included: an answer may, for example, replace a tensor's
    `__repr__`. Every worker of every check calls this right after the fork. Reading an object copies its memory page
    then, so this reads as little as possible.
    """
    found: Functions = {}
    modules = [sys.modules[name] for name in course if name in sys.modules]
    for module in modules:  # grows; a loop over sys.modules would read thousands
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


def replaced(before: Functions) -> list[str]:
    """Return the names of functions in `before`, from `functions()`, that have changed since.

    Functions that a library has wrapped, as torch does, are not included.
    """
    names = []
    for owner, values in before.items():
        for name, (value, code) in values.items():
            new = _attribute(owner, name)
            if (new is not value or _code(new) is not code) and not _is_wrapped(new, code):
                names.append(f"{owner.__name__}.{name}")
    return names


@contextlib.contextmanager
def intact() -> Iterator[None]:
    """Raise Wrong if code in this block replaces a function that the check itself uses."""
    before = functions(_IN_WORKERS)
    yield
    if names := replaced(before):
        raise Wrong(f"your function replaces {', '.join(names[:3])}, which the check itself uses: leave it as it is")


def _counted(names):
    """Return {name: (value, its code)} of the functions and classes in `names`, {name: value}."""
    found = {}
    for name, value in names.items():
        kind = type(value)
        if kind is types.FunctionType:
            found[name] = value, value.__code__
        elif kind in _OTHER_FUNCTIONS or isinstance(value, type):
            found[name] = value, _code(value)
    return found


def _lines(owner):
    """Return the namespaces in which a name of this module or class is looked up, in order."""
    return owner.__mro__ if isinstance(owner, type) else (owner,)


def _attribute(owner, name):
    """Return the raw attribute, without calling descriptors or a module's __getattr__."""
    for each in _lines(owner):
        if name in vars(each):
            return vars(each)[name]
    return None


def _is_wrapped(new, code):
    """Return whether `new` is a library's wrapper around the function with this code."""
    own_code, outer = (_code(inspect.unwrap(new)), _code(new)) if callable(new) else (None, None)
    return own_code is code and code is not None and outer is not None and not cells.is_own(outer.co_filename)


def _code(value):
    return getattr(getattr(value, "__func__", value), "__code__", None)


def _names(codes):
    """Return all global and attribute names that these code objects and those nested in them use."""
    names, codes = set(), list(codes)
    for code in codes:  # grows
        names.update(code.co_names)
        codes += [constant for constant in code.co_consts if type(constant) is types.CodeType]
    return names
