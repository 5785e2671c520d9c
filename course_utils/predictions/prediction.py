"""A single prediction: what is asked, what was answered, and what was measured."""

import dis
import math
import numbers
import sys
from dataclasses import dataclass, field
from typing import Any

from .. import notebook
from . import kept
from .field import Field, ran_by_itself

SKIP = "skip"
_FIRST = "answer above and run this cell again, or just run it again."


class PredictFirst(Exception):
    """Ends a cell that would show a result before the student has predicted it; shown as one line."""

    def _render_traceback_(self):  # IPython's hook
        return [f"\x1b[31mPredict first\x1b[0m: {self}"]


@dataclass
class Prediction:
    """What `question` asks for, kept under `chapter` ("09") and `name`; `value` is None until it is answered."""

    question: str
    name: str
    unit: str = ""
    choices: tuple = ()
    chapter: str = ""
    value: Any = None
    is_skipped: bool = False
    was_asked: bool = False
    field: Field | None = field(default=None, repr=False)

    @property
    def is_answered(self):
        return self.value is not None or self.is_skipped

    def understood(self, answer):
        """Return a given answer as a value, None for "skip". Raises TypeError or ValueError if it is neither."""
        if answer == SKIP:
            return None
        if self.choices:
            if answer not in self.choices:
                raise ValueError(f"the answer is one of {', '.join(map(repr, self.choices))}, not {answer!r}")
            return answer
        if isinstance(answer, bool) or not isinstance(answer, numbers.Real):
            raise TypeError(f"the answer is a number, such as 0.2, not {answer!r}")
        if not math.isfinite(answer):
            raise ValueError(f"the answer is a finite number, not {answer!r}")
        if self.unit and answer < 0:  # what has a unit here is a time, a size or a share
            raise ValueError(f"the answer is 0 {self.unit} or more, not {answer!r}")
        return answer if isinstance(answer, int) else float(answer)

    def remember(self):
        """Take what is kept in the student's copy, if it answers this question."""
        entry = kept.here().read(print).get(self.chapter, {}).get(self.name)
        if entry is None:
            return
        value = entry.get("predicted")
        self.is_skipped = value is None
        try:
            self.value = None if value is None else self.understood(value)
        except (TypeError, ValueError):  # of an older version of the question
            self.value = None

    def answer(self, value, say):
        """Take an answer, None for no prediction, and keep it; `say` is called with a sentence if that fails."""
        self.value, self.is_skipped = value, value is None
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        if shell is not None and self.name in shell.user_ns:
            shell.user_ns[self.name] = value
        if notebook.is_watched():
            entry = {"question": self.question, "unit": self.unit, "predicted": value}
            kept.here().answer(self.chapter, self.name, entry, say)

    def show_field(self):
        self.field = Field(self)
        self.field.show()

    def is_to_be_asked(self):
        """Return whether the student could have answered, has not, and has not been reminded."""
        is_open = self.value is None and not self.is_skipped and not self.was_asked
        return is_open and self.field is not None and self.field.is_drawn() and ran_by_itself()

    @staticmethod
    def ask_for(predictions):
        """Show the fields of `predictions` again and end the cell, if there are any."""
        for each in predictions:
            each.was_asked = True
            each.field.show()
        if predictions:
            raise PredictFirst(_FIRST)

    def compare(self, measured, say):
        """Say and keep what was measured beside what was predicted; without a prediction, do nothing."""
        if self.value is None:
            return
        measured = float(measured) if isinstance(measured, numbers.Real) else str(measured)
        off = off_by(self.value, measured)
        end = "" if off is None else f": off by a factor of {f'{off:.2f}' if off < 10 else f'{off:,.0f}'}"
        say(f"You predicted {self.said(self.value)}, and here it is {self.said(measured)}{end}.")
        if notebook.is_watched():
            kept.here().measured(self.chapter, self.name, measured, say)

    def said(self, value):
        """Return a value as text, with its unit."""
        if not isinstance(value, numbers.Real):
            return f"“{value}”"
        digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return f"{digits} {self.unit}".strip()


def name_on_the_left(frame):
    """Return `x` where `frame` is just calling a function in `x = f(…)`, else None.

    The instruction after the call stores its result. The source would tell too, but may be missing.
    """
    after = next((each for each in dis.get_instructions(frame.f_code) if each.offset > frame.f_lasti), None)
    return after.argval if after is not None and after.opname in ("STORE_NAME", "STORE_GLOBAL", "STORE_FAST") else None


def off_by(predicted, measured):
    """Return the factor by which a prediction is too high or too low, at least 1; None unless both are above 0."""
    both = (predicted, measured)
    if not all(isinstance(each, numbers.Real) and math.isfinite(each) and each > 0 for each in both):
        return None
    return max(predicted / measured, measured / predicted)


def all_measured():
    """Return the student's predictions that have a number beside them, in the order of chapters.

    Each is {"chapter", "question", "unit", "predicted", "measured"}, both numbers above 0. While a notebook is tested
    or recorded there are none.
    """
    entries = kept.here().read(print) if notebook.is_watched() else {}
    found = [{"chapter": chapter, **entry} for chapter in sorted(entries) for entry in entries[chapter].values()]
    return [each for each in found if off_by(each["predicted"], each.get("measured")) is not None]
