"""Checks of the exercises: each runs the student's answer, in worker processes if the task is about workers.

`check("9.2", my_function)` calls `check_9_2(my_function)`, from module `check` of chapter 9's package in
`course_utils.chapters`. Such a module is a list of cases: `judge` runs the answer, `expect` compares results, `watch`
observes the answer while it runs. A check returns what it has verified, or raises `Wrong` with a hint that does not
give the answer away. No check contains a solution.
"""

import contextlib
import html
import importlib
import os
import signal
import types
from collections.abc import Iterator

from ..kernels import KernelError
from ..launch import Interrupted, WorkerError
from ..launch.watch.errors import briefly_interrupted
from ..launch.watch.explain import interrupted
from ..notebook import WHOLE_WORDS, shows_values
from .expect import Wrong
from .waiting import waiting

__all__ = ["CheckFailed", "Result", "Wrong", "check", "evaluate"]

_SIGNS = {"passed": "✓", "wrong": "✗", "open": "○"}
_TINTS = {"passed": "#009E73", "wrong": "#D55E00", "open": "#888888"}


class CheckFailed(AssertionError):
    """An exercise's check did not pass, and COURSE_STRICT=1."""


class Result:
    """What a check found: `state` ("passed", "wrong" or "open", not attempted yet) and `reason`."""

    def __init__(self, exercise: str, state: str, reason: str, error: str = "") -> None:
        self.exercise, self.state = exercise, state
        self.reason = f"{reason}\n{error}" if error else reason
        self._error = error  # the worker's or compiler's message, shown in <pre>

    def __repr__(self):
        return f"{_SIGNS[self.state]} Exercise {self.exercise}: {self.reason}"

    def _repr_html_(self):
        tint, text = _TINTS[self.state], html.escape(repr(self).removesuffix(self._error).rstrip())
        error = f'<pre style="margin: 4px 0 0; white-space: pre-wrap; {WHOLE_WORDS}">{html.escape(self._error)}</pre>'
        return (
            f'<div style="border-left: 4px solid {tint}; padding: 4px 10px; white-space: pre-wrap">{text}'
            f"{error if self._error else ''}</div>"
        )


def check(exercise: str, answer: object) -> Result:
    """Run the check of an exercise, for example `check("9.2", my_function)`, and return the result, which a cell shows.

    Where no value is shown, as in a script, it is printed. Raises ValueError if there is no such exercise, and
    CheckFailed if COURSE_STRICT=1 and the check does not pass; an interrupt raises Interrupted, a KeyboardInterrupt.
    """
    with waiting(exercise), _interruptible(exercise):
        result = evaluate(exercise, answer)
    if os.environ.get("COURSE_STRICT") == "1" and result.state != "passed":
        raise CheckFailed(repr(result))
    if not shows_values():
        print(result)
    return result


@contextlib.contextmanager
def _interruptible(exercise: str) -> Iterator[None]:
    """Have an interrupt of this block say which check it has interrupted, and where the student's code was."""
    what = f"the check of exercise {exercise} was interrupted"
    try:
        with briefly_interrupted(what):
            yield
    except Interrupted as error:
        raise interrupted(what, error.ranks) from None


def evaluate(exercise: str, answer: object) -> Result:
    """Run the check of an exercise and return its Result."""
    run = _find(exercise)
    try:
        return Result(exercise, "passed", run(answer))
    except Wrong as reason:
        return Result(exercise, "wrong", str(reason))
    except WorkerError as error:
        # torch raises NotImplementedErrors with a message; a stub's has none.
        if error.is_a(NotImplementedError) and not error.message:
            return _not_attempted(exercise)
        text = error.text  # without the advice for callers of launch
        if error.exitcode == -signal.SIGABRT:  # a rank received more or fewer bytes than expected
            text += (
                "\n\nThe ranks must agree: on the collectives they call, their order, shapes and dtypes, and on how "
                "many bytes one sends and another receives."
            )
        where = "in the simulator" if isinstance(error, KernelError) else "in a worker"
        return Result(exercise, "wrong", f"your code failed {where}:", text)


def _not_attempted(exercise):
    return Result(
        exercise,
        "open",
        "not attempted yet. Put your answer in the place of raise NotImplementedError, and run the cell again.",
    )


def of_chapter(number: int) -> types.ModuleType | None:
    """Import and return the module with a chapter's checks, or None if there is no such chapter."""
    rooms = importlib.import_module("course_utils.chapters")  # imported here: chapters import this
    room = rooms.room(number)
    return room and importlib.import_module(f"{room}.check")


def _find(exercise):
    chapter, _, number = str(exercise).partition(".")
    if chapter.isdecimal() and number.isdecimal():
        check = getattr(of_chapter(int(chapter)), f"check_{int(chapter)}_{int(number)}", None)
        if check is not None:
            return check
    raise ValueError(f"there is no exercise {exercise!r}; write check('9.2', my_function) for exercise 9.2")
