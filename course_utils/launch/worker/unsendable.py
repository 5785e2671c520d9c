"""What cannot be sent to another process, in words: which part of it is to blame, and how it is reached."""

import contextlib
import functools
import inspect
import itertools
import types

from ...processes import payload

_MOST_PARTS, _MOST_STEPS = 1_000, 20
_NAME = "'s "  # before a name that a function refers to


def described(value: object) -> str:
    """Say what `value` is, as `a Trainer whose .parts['a'][1] is a lock`: the part that is to blame, and how it is
    reached by attributes, items, and what functions refer to.
    """
    path, blamed = "", value
    with contextlib.suppress(Exception):  # a student's __getstate__, for one
        path, blamed = _path_to_blame(value)
    return f"{_kind(value)} whose {path.removeprefix(_NAME)} is {_kind(blamed)}" if path else _kind(value)


def sending_back(value: object) -> str:
    """Say that `value` was on its way back to the notebook, which failed."""
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
    """The exception that sending `value` raises, or None."""
    try:
        payload.require_sendable(value)
    except Exception as error:
        return error
    return None


def _parts(value):
    """Yield (step, part) of all that travels with `value`, as far as is known."""
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
