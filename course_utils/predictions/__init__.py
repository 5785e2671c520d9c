"""Predictions that a student makes before a measurement, kept for the whole course and compared with what came out.

    my_seconds = predict("How long until four workers hold their sum?", unit="s", chapter=0)  # a value, or None
    reveal(my_seconds=median_s)  # in the cell that measures, before it shows anything

They are kept in `predictions.json` in the folder of the notebook, the student's own copy.
"""

import sys

from .. import notebook
from ..extras import is_installed
from .prediction import Prediction, name_on_the_left
from .prediction import all_measured as all_measured  # for chapter 19

__all__ = ["all_measured", "predict", "reveal"]

_made = {}  # the predictions of this notebook: name of the variable → Prediction


def predict(question, answer=None, *, unit="", choices=(), chapter=None):
    """Ask the student for a number, or for one of `choices`, and return what they have predicted, or None.

    Below the cell, a field shows `question` with the `unit` of the number, and what was typed into it before, also
    before the kernel was restarted. What is typed goes to the variable on the left of this call at once, and is kept
    under `chapter` (a number) and the variable's name. Where no field appears, give `answer` in the call: a value, or
    "skip" for no prediction.

    The field appears only where somebody can type: in a notebook's kernel, unless it is tested or recorded, and if the
    front end says that it accepts input, which papermill, nbclient and nbval do not. Elsewhere this only returns
    `answer`, or what is remembered.

    Raises TypeError or ValueError for an answer that is neither a finite number nor one of the choices, or that has a
    unit and is below 0.
    """
    name = name_on_the_left(sys._getframe(1)) or question
    made = _made[name] = Prediction(question, name, unit, tuple(choices), "" if chapter is None else f"{chapter:02d}")
    if answer is not None:
        made.answer(made.understood(answer), print)
    elif notebook.is_watched():
        made.remember()
        if notebook.is_typed_into() and is_installed("ipywidgets"):
            made.show_field()
    return made.value


def reveal(**measured):
    """Note what came out beside what was predicted: `reveal(my_seconds=0.21)`, in the cell that measures.

    Where there is a prediction, this prints both. Where there is none, the first call shows the field again and ends
    the cell with one line, so that the cell does not show its result; run again, it does. That happens only if a
    browser has drawn the field, nothing was skipped, and the cell was run by itself: the kernel had nothing to do for
    two seconds before it, as is never so within Run All. Elsewhere nothing is asked or printed.

    Names of variables that no `predict` has set are ignored.
    """
    found = {name: _made[name] for name in measured if name in _made}
    Prediction.ask_for([made for made in found.values() if made.is_to_be_asked()])
    for name, made in found.items():
        made.compare(measured[name], print)
