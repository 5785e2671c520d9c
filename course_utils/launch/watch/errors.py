"""The errors of a launch, as a student reads them and as programs do: text, and fields."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ... import cells
from .outcome import Outcome

if TYPE_CHECKING:
    from ..run import Run


class _Brief:
    def _render_traceback_(self):
        # IPython's hook. The frames of the notebook's own process only lead to launch() and help nobody.
        head, _, rest = str(self).partition("\n")
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {head}", *rest.split("\n")]

    def add(self, note):
        """Append `note`, which became known later, to the text; "" adds nothing."""
        if note:
            self.args = (f"{self}\n\n{note}",)


class LauncherError(_Brief, RuntimeError):
    """The launcher, or the system under it, could not do its work; this says nothing about the worker function."""

    run: Run | None = None


class WorkerError(_Brief, RuntimeError):
    """A launch whose workers failed. Its text is for people; programs use its attributes.

    `rank` is the rank to look at first. `type_name` (of the module `type_module`) and `message` are its exception's,
    "" if it has none; `exitcode` is its process's exit code (minus the signal's number if a signal ended it; None if
    it was stopped by the launcher), `frames` where it failed or was, as (file name, line number, function), outermost
    first, each with `locals`, which says in words what variables of a student's function held, and `traceback` its
    traceback as text ("" if none).
    `timed_out` says whether the timeout ended them, `has_quit` whether the student left it at its debugger's prompt.
    `ranks` holds what is known of each rank asked, in order: `returned`, `report`, `died` and, as above, `frames`.
    `text` is the text without `advice`, which only the caller of `launch` can follow. `run` holds what the ranks had
    printed, logged and returned by then.
    """

    def __init__(self, text, cause=None, ranks=(), timed_out=False, advice=""):
        super().__init__(f"{text}\n\n{advice}" if advice else text)
        self.text, self.advice, self.ranks, self.timed_out, self.run = text, advice, tuple(ranks), timed_out, None
        cause = cause or Outcome(None)
        report = cause.report
        self.rank, self.frames, self.has_quit = cause.rank, cause.frames, cause.has_quit
        self.type_module, self.type_name, self.message = (
            ("", "", "") if report is None else (report.type_module, report.type_name, report.message)
        )
        self.exitcode = cause.died if report is None else report.exitcode
        self.traceback = "" if report is None else cells.with_cell_names(report.traceback)

    def is_a(self, kind: type[BaseException]) -> bool:
        """Whether the rank's exception is of the class `kind` itself, not only of one with its name."""
        return (self.type_module, self.type_name) == (kind.__module__, kind.__name__)


class RanksError(_Brief, RuntimeError):
    """Persistent ranks could not do what was asked: there are none, or not these."""


class Interrupted(_Brief, KeyboardInterrupt):
    """A launch that was interrupted, or quit at a debugger's prompt; its text says where the ranks were.

    `run` holds what they had printed, logged and returned by then, or is None if none had begun.
    """

    run: Run | None = None


@contextlib.contextmanager
def briefly_interrupted(what: str) -> Iterator[None]:
    """Tell an interrupt that strikes inside in one sentence, `what`; an error that was being told then comes first."""
    before = sys.exc_info()[1]  # which the caller may be dealing with
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt as error:
        told = error.__context__
        raise (told if isinstance(told, _Brief) and told is not before else Interrupted(what)) from None
