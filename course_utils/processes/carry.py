"""How to pickle objects of cells that pickle and cloudpickle cannot send: the receiver rebuilds them.

pickle would send them by name, which a worker's `__main__` does not have yet, or they hold locks, weak references or
the notebook's shell.
"""

import builtins
import copyreg
import dataclasses
import functools
import sys
import types
import typing

_DISPATCHER = functools.singledispatch(len).__code__
_BY_NAME = tuple(getattr(typing, name) for name in ("ParamSpec", "TypeVarTuple") if hasattr(typing, name))


def anew(obj):
    """Return how to rebuild `obj`, in the form of `__reduce__`; None if it is pickled as usual."""
    if isinstance(obj, functools._lru_cache_wrapper) and _is_of_a_cell(obj):
        return _cached, (obj.__wrapped__, obj.cache_parameters())
    if isinstance(obj, types.FunctionType) and obj.__code__ is _DISPATCHER and _is_of_a_cell(obj):
        others = [(kind, function) for kind, function in obj.registry.items() if kind is not object]
        return functools.singledispatch, (obj.registry[object],), others, None, None, _register
    if isinstance(obj, types.FunctionType) and "_torchdynamo_orig_callable" in obj.__dict__:
        return _of_dynamo(obj)
    if type(obj) is functools.cached_property:  # holds a lock before Python 3.12
        return functools.cached_property, (obj.func,), {"attrname": obj.attrname}
    if obj is dataclasses.MISSING:
        return getattr, (dataclasses, "MISSING")
    if isinstance(obj, typing.NewType) and obj.__module__ == "__main__":
        return typing.NewType, (obj.__name__, obj.__supertype__), {"__module__": "__main__"}
    if isinstance(obj, _BY_NAME) and obj.__module__ == "__main__":
        return type(obj), (obj.__name__,), {"__module__": "__main__"}
    if type(obj).__module__ == "__main__" and type(obj).__reduce__ is not object.__reduce__:
        return _by_name(obj)
    return _of_pyplot(obj) or _of_the_shell(obj)


def _of_pyplot(obj):
    """Rebuild a figure without adding it to pyplot's figures, which a notebook would show below the cell."""
    figures = sys.modules.get("matplotlib.figure")
    if figures is None or not isinstance(obj, figures.Figure):
        return None
    return copyreg.__newobj__, (type(obj),), obj.__getstate__(), None, None, _set_figure


def _set_figure(figure, state):
    was_pyplots = state.get("_restore_to_pylab")
    figure.__setstate__(state)
    if was_pyplots:  # __setstate__ has added it to pyplot's figures
        sys.modules["matplotlib.pyplot"].close(figure)


def _of_dynamo(wrapper):
    """Rebuild a function wrapped by torch.compile as before its first call: compiled code is not sent."""
    closure = dict(zip(wrapper.__code__.co_freevars, wrapper.__closure__ or (), strict=True))
    if "self" not in closure:
        return None
    return _compiled, (closure["self"].cell_contents, wrapper._torchdynamo_orig_callable)


def _compiled(context, function):
    return context(function)


def _by_name(obj):
    """Rebuild an object of a cell's class that pickles itself by name, such as a sentinel."""
    if isinstance(obj.__reduce__(), str):
        return copyreg.__newobj__, (type(obj),), getattr(obj, "__dict__", None) or None
    return None


def _of_the_shell(obj):
    """Replace IPython's `exit` by Python's, and its `get_ipython` by one that raises NameError."""
    if "IPython" not in sys.modules:
        return None
    from IPython.core.autocall import ExitAutocall
    from IPython.core.interactiveshell import InteractiveShell

    if isinstance(obj, ExitAutocall):
        return getattr, (builtins, "exit")
    if isinstance(obj, types.MethodType) and isinstance(obj.__self__, InteractiveShell):
        return (getattr, (sys.modules[__name__], "no_shell")) if obj.__name__ == "get_ipython" else None
    return None


def no_shell():
    """Raise NameError, as `get_ipython` does in a program; stands for it in workers."""
    raise NameError(
        "name 'get_ipython' is not defined: a worker has no IPython, and so no %magic and no !command; "
        "call the function that the magic stands for, or subprocess.run"
    )


def _is_of_a_cell(obj):
    module = sys.modules.get(obj.__module__)
    return obj.__module__ == "__main__" or _attribute(module, getattr(obj, "__qualname__", "")) is not obj


def _attribute(module, path):
    for name in path.split("."):
        module = getattr(module, name, None)
    return module


def _cached(function, parameters):
    return functools.lru_cache(**parameters)(function)


def _register(dispatcher, functions):
    for kind, function in functions:
        dispatcher.register(kind, function)
