"""The errors of a launch: text for the student, attributes for programs."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ... import cells
from .outcome import Outcome

if TYPE_CHECKING:
    from ..run import Run


_WIDTH = 100  # JupyterLab breaks longer lines in the middle of a word


def in_whole_words(text: str) -> list[str]:
    """Return a line of prose as lines of at most 100 characters."""
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def headed(error: BaseException, text: str) -> list[str]:
    """Return the first lines of what is shown of an error: its type in red, and one line of prose."""
    name = type(error).__name__
    first, *others = in_whole_words(f"{name}: {text}")
    return [f"\x1b[31m{name}\x1b[0m{first.removeprefix(name)}", *others]


def _wrapped(line):
    """Return a sentence in lines of at most 100 characters, and what is no sentence, as code, unchanged."""
    is_sentence = line[:1].isupper() and line.endswith(".") and "  " not in line
    return in_whole_words(line) if is_sentence else [line]


class _Brief:
    def _render_traceback_(self):
        # IPython's hook. The notebook's own frames only lead to launch(), so they are not shown.
        head, _, rest = str(self).partition("\n")
        lines = [part for line in rest.split("\n") for part in _wrapped(line)]
        return [*headed(self, head), *lines]

    def add(self, note):
        """Append `note` to the text; "" adds nothing."""
        if note:
            self.args = (f"{self}\n\n{note}",)


class LauncherError(_Brief, RuntimeError):
    """Raised if the launcher or the system failed; the worker function is not the cause."""

    run: Run | None = None


class WorkerError(_Brief, RuntimeError):
    """Raised if workers failed. Its text is for people; programs use its attributes.

    `rank` is the rank to look at first. `type_name` (of the module `type_module`) and `message` are those of its
    exception, "" if it has none. `exitcode` is its process's exit code: minus the signal's number if a signal ended it,
    None if the launcher stopped it. `frames` is its stack, as (file name, line number, function), outermost first; the
    `locals` of each frame describe the variables of the student's functions. `traceback` is its traceback as text,
    "" if there is none.

    `ranks` holds the Outcome of each rank asked, in order: `returned`, `report`, `died`, `frames`, and `collective`,
    the last one that it called, with its `kind`, `group`, `number` in that group, `shape` and `dtype`. `findings` says
    which ranks are behind others, or called another collective: each is a Differ, an Unmatched or a Behind of
    `watch.agreement`.

    `timed_out` says whether the timeout ended the ranks, `has_quit` whether the student quit at a debugger's prompt.
    `text` is the text without `advice`, which only the caller of `launch` can follow. `run` holds what the ranks had
    printed, logged and returned.
    """

    def __init__(self, text, cause=None, ranks=(), timed_out=False, advice="", findings=()):
        super().__init__(f"{text}\n\n{advice}" if advice else text)
        self.text, self.advice, self.ranks, self.timed_out, self.run = text, advice, tuple(ranks), timed_out, None
        self.findings = tuple(findings)
        cause = cause or Outcome(None)
        report = cause.report
        self.rank, self.frames, self.has_quit = cause.rank, cause.frames, cause.has_quit
        self.type_module, self.type_name, self.message = (
            ("", "", "") if report is None else (report.type_module, report.type_name, report.message)
        )
        self.exitcode = cause.died if report is None else report.exitcode
        self.traceback = "" if report is None else cells.with_cell_names(report.traceback)

    def is_a(self, kind: type[BaseException]) -> bool:
        """Return whether the rank's exception is of class `kind`; a class of the same name elsewhere is not."""
        return (self.type_module, self.type_name) == (kind.__module__, kind.__name__)


class RanksError(_Brief, RuntimeError):
    """Raised if persistent ranks do not exist, have ended, or cannot run a request."""


class Interrupted(_Brief, KeyboardInterrupt):
    """Raised if a launch was interrupted, or quit at a debugger's prompt; the text says where the ranks were.

    `run` holds what the ranks had printed, logged and returned, or is None if none had begun. `ranks` and `findings`
    are as in a WorkerError.
    """

    run: Run | None = None

    def __init__(self, text="", ranks=(), findings=()):
        super().__init__(text)
        self.ranks, self.findings = tuple(ranks), tuple(findings)


@contextlib.contextmanager
def briefly_interrupted(what: str) -> Iterator[None]:
    """Turn an interrupt of this block into Interrupted(`what`), or into the launch error that was being handled."""
    before = sys.exc_info()[1]  # an error that the caller is handling
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt as error:
        told = error.__context__
        raise (told if isinstance(told, _Brief) and told is not before else Interrupted(what)) from None
