"""Arrays that record a simulated kernel's accesses, and check every index.

CUDA checks no index. A thread that goes past the end reads or changes whatever is in that memory, so a wrong kernel
often happens to give the right result.
"""

import itertools
import operator
import sys
from typing import NamedTuple

import numpy as np

_numbers = itertools.count()  # id() would be reused after an array is freed

MAX_TOUCHES = 200_000  # kept for the notebook, about 40 MB
MAX_RACES = 100
_MAX_FOLLOWED = 500_000  # elements checked for races, about 200 MB


class Touch(NamedTuple):
    """One access of one thread to one element.

    `block` and `thread` are ints if grid and block were ints, else tuples (x, y) or (x, y, z).
    """

    block: "int | tuple"
    thread: "int | tuple"
    arg: str  # name of the kernel's parameter
    element: "int | tuple"
    kind: str  # "read" or "write"
    atomic: bool = False


class Race(NamedTuple):
    """Two threads access one element in no defined order, and at least one of them writes."""

    array: str
    element: "int | tuple"
    first: tuple  # (block, thread, kind)
    second: tuple

    def __str__(self):
        (block, thread, kind), (other_block, other, other_kind) = self.first, self.second
        return (
            f"thread {thread} of block {block} {kind}s {self.array}[{_text(self.element)}] and thread {other} of block "
            f"{other_block} {other_kind}s it, in no certain order"
        )


class BadAccess(Exception):
    """A thread made an invalid access; the message continues the thread's name: "writes out[8], but …"."""


class Observer:
    """Records every access, with the current thread; only one thread runs at a time, so it needs no lock."""

    def __init__(self):
        self.block = self.thread = None
        self.phase = 0  # number of barriers passed
        self.in_atomic = False
        self.touches, self.num_touches = [], 0
        self.races, self._raced = [], set()
        self._followed = {"read": {}, "write": {}}
        # The first BadAccess, even if the kernel catches it: a GPU raises nothing.
        self.refused = None

    def refuse(self, words):
        error = BadAccess(words)
        self.refused = self.refused or error
        raise error

    def note(self, array, element, kind):
        if not array.is_inner:
            self.num_touches += 1
            if self.num_touches <= MAX_TOUCHES:
                self.touches.append(Touch(self.block, self.thread, array.name, element, kind, self.in_atomic))
        self._look_for_race(array, element, kind)

    def _look_for_race(self, array, element, kind):
        key, me = (array.number, element), (self.block, self.thread)
        reads, writes = self._followed["read"], self._followed["write"]
        for earlier in (*writes.get(key, ()), *(reads.get(key, ()) if kind == "write" else ())):
            block, thread, _, phase, atomic = earlier
            in_order = block == self.block and phase != self.phase  # a barrier is between
            if (block, thread) == me or in_order or (atomic and self.in_atomic):
                continue
            if len(self.races) < MAX_RACES and key not in self._raced:
                self._raced.add(key)
                self.races.append(Race(array.name, element, earlier[:3], (*me, kind)))
            break
        # The first access, the last, and the last by another thread are enough to find any race, because blocks run one
        # after another, and so do the phases between barriers.
        now = (*me, kind, self.phase, self.in_atomic)
        followed = self._followed[kind]
        first, last, other = followed.get(key, (now, now, now))
        if key in followed or len(followed) < _MAX_FOLLOWED:
            followed[key] = (first, now, other if last[:2] == me else last)


class Array:
    """Replaces an array in a simulated kernel; it has only elements, `shape`, `size`, `ndim`, `dtype` and `len`.

    `is_inner` marks an array made by the kernel; its name is that of the variable that holds it.
    """

    def __init__(self, values, observer, name=None, is_inner=False):
        self._values, self._observer, self._name, self.is_inner = values, observer, name, is_inner
        self.number = next(_numbers)
        self.shape, self.size, self.ndim, self.dtype = values.shape, values.size, values.ndim, values.dtype

    @property
    def name(self):
        frame = sys._getframe(1)
        while self._name is None and frame is not None:
            if frame.f_globals.get("__name__") != __name__:
                self._name = next((name for name, value in frame.f_locals.items() if value is self), None)
            frame = frame.f_back
        return self._name or "a shared array"

    def __len__(self):
        return len(self._values)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index):
        element = self._element(index, "read")
        self._observer.note(self, element, "read")
        return self._values[element]

    def __setitem__(self, index, value):
        element = self._element(index, "write")
        if not isinstance(value, (int, float, complex, np.number, np.bool_)):
            self._observer.refuse(
                f"writes a {type(value).__name__} into {self.name}[{_text(element)}], which holds one number"
            )
        self._observer.note(self, element, "write")
        self._values[element] = value

    def _element(self, index, kind):
        """Return `index` as an int, or a tuple of ints for several dimensions. Raises BadAccess."""
        parts = index if isinstance(index, tuple) else (index,)
        try:
            parts = tuple(map(operator.index, parts))
        except TypeError:
            shown = ", ".join("a:b" if isinstance(part, slice) else _short(part) for part in parts)
            self._observer.refuse(
                f"{kind}s {self.name}[{shown}], but an index is a whole number (of two whole numbers, // gives one "
                "and / does not)"
            )
        if len(parts) != self.ndim:
            self._observer.refuse(
                f"{kind}s {self.name}[{_text(parts)}], but {self.name} has shape {self.shape} and needs {self.ndim} "
                f"{'index' if self.ndim == 1 else 'indices'}"
            )
        if not all(0 <= part < length for part, length in zip(parts, self.shape)):
            self._observer.refuse(f"{kind}s {self.name}[{_text(parts)}], {self._limits(parts)}")
        return parts if self.ndim > 1 else parts[0]

    def _limits(self, parts):
        if self.ndim > 1:
            limits = f"but {self.name} has shape {self.shape}"
        else:
            span = f" (0 to {self.size - 1})" if self.size else ""
            limits = f"but {self.name} has {self.size} element{'s' * (self.size != 1)}{span}"
        if min(parts) < 0:
            return f"{limits}: an index below 0 lies in front of it, and does not count from its end"
        return f"{limits}: is there a guard for the threads past the end?"

    def __getattr__(self, name):
        raise AttributeError(
            f"{self.name}.{name} is not in the simulator: an array has elements, shape, size, ndim, dtype"
        )


def _text(element):
    parts = element if isinstance(element, tuple) else (element,)
    return ", ".join(str(int(part)) for part in parts)


def _short(value):
    return repr(float(value)) if isinstance(value, (float, np.floating)) else f"a {type(value).__name__}"


def _whole(self, *_):
    self._observer.refuse(
        f"computes with all of {self.name}: a thread works on single elements, such as {self.name}[i]"
    )


for _operator in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge"):
    setattr(Array, f"__{_operator}__", _whole)
    setattr(Array, f"__r{_operator}__", _whole)
