"""Describes a value that cannot be sent to another process: which part causes that, and how to reach it."""

import contextlib
import functools
import inspect
import itertools
import types

from ...processes import payload

_MOST_PARTS, _MOST_STEPS = 1_000, 20
_NAME = "'s "  # put before a name that a function refers to


def described(value: object) -> str:
    """Describe `value` and the part of it that cannot be sent, as in `a Trainer whose .parts['a'][1] is a lock`.

    The path consists of attributes, items, and names that functions refer to.
    """
    path, blamed = "", value
    with contextlib.suppress(Exception):  # such as one in a student's __getstate__
        path, blamed = _path_to_blame(value)
    return f"{_kind(value)} whose {path.removeprefix(_NAME)} is {_kind(blamed)}" if path else _kind(value)


def sending_back(value: object) -> str:
    """Return what the launcher was doing when it could not send the result `value` to the notebook."""
    return f"sending back its result, {described(value)}: return plain values or tensors"


def _kind(value):
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _path_to_blame(value):
    path, seen = "", set()
    for _ in range(_MOST_STEPS):
        seen.add(id(value))
        for step, part in itertools.islice(_parts(value), _MOST_PARTS):
            if id(part) not in seen and reason_against(part) is not None:
                path, value = path + step, part
                break
        else:
            break
    return path, value


def reason_against(value: object) -> Exception | None:
    """Return the exception that sending `value` raises, or None."""
    try:
        payload.require_sendable(value)
    except Exception as error:
        return error
    return None


def _parts(value):
    """Yield (path step, part) of all known parts that are sent with `value`."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]" if len(repr(key)) < 40 else "[…]", part) for key, part in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        names = inspect.getclosurevars(value)
        yield from ((f"{_NAME}{name}", part) for name, part in (names.nonlocals | names.globals).items())
    elif type(value).__reduce__ is object.__reduce__ and type(value).__reduce_ex__ is object.__reduce_ex__:
        yield from _attributes(value)


def _attributes(value):
    state = value.__getstate__()
    for attributes in state if isinstance(state, tuple) else (state,):
        if isinstance(attributes, dict):
            yield from ((f".{name}", part) for name, part in attributes.items())
