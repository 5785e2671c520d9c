"""The field below a question, and whether the student had time to type into it."""

from __future__ import annotations

import html
import re
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .prediction import Prediction

IDLE_S = 2.0  # Run All leaves less between two cells; whoever reads a question, more


class Field:
    """Widgets that ask for a number or a choice; what is typed goes to `prediction.answer`."""

    def __init__(self, prediction: Prediction):
        import ipywidgets

        self._prediction, self._shown, self._is_entered = prediction, [], False
        look = {"description": "Your prediction:", "style": {"description_width": "initial"}}
        if prediction.choices:
            options = [("choose one", ""), *((str(each), each) for each in prediction.choices)]
            value = "" if prediction.value is None else prediction.value
            self._input = ipywidgets.Dropdown(options=options, value=value, **look)
        else:
            value = "" if prediction.value is None else f"{prediction.value:.12g}"
            hint = "a number, then Enter"
            self._input = ipywidgets.Text(value, placeholder=hint, continuous_update=False, **look)
        self._input.on_msg(self._note_enter)
        self._input.observe(self._take, "value")
        skip = ipywidgets.Button(description="Skip", tooltip="no prediction", layout={"width": "max-content"})
        skip.on_click(lambda _: self._answer(None))
        question = ipywidgets.HTML(html.escape(prediction.question))
        self._unit = ipywidgets.Label(prediction.unit, tabbable=False)
        row = ipywidgets.HBox([self._input, self._unit, skip])
        self._status = ipywidgets.HTML()
        self._box = ipywidgets.VBox([question, row, self._status])
        # A link that the browser keeps: as soon as it draws widgets, it copies True to `drawn`, and tells the kernel.
        source, self._drawn = ipywidgets.Checkbox(True), ipywidgets.Checkbox(False)
        self._link = ipywidgets.jsdlink((source, "value"), (self._drawn, "value"))
        if prediction.value is not None or prediction.is_skipped:
            self._say(self._taken(prediction.value))

    def show(self):
        """Display the field, once more if it is displayed already; nothing is left of it where widgets are unknown.

        Once it is answered, and the next cell begins, a line takes its place: of a widget, a notebook that is opened
        the next day shows only that its model was not found.
        """
        from IPython.display import DisplayHandle

        _watch_the_kernel()
        _open.add(self)
        self._shown.append(DisplayHandle())
        self._shown[-1].display(self._box._repr_mimebundle_() | {"text/plain": ""}, raw=True)

    def is_drawn(self):
        """Return whether a front end has drawn widgets."""
        return self._drawn.value

    def _note_enter(self, _, content, __):
        self._is_entered = content.get("event") == "submit"  # the browser sends the value after this

    def _take(self, change):
        typed, is_entered, self._is_entered = change["new"], self._is_entered, False
        if typed == "":
            return
        try:
            value = typed if self._prediction.choices else self._prediction.understood(_number(typed))
        except ValueError as error:
            self._say(html.escape(str(error)))
            return
        self._answer(value)
        # A field keeps keys from JupyterLab, Shift+Enter too; a text does not. Who has clicked elsewhere stays there.
        if is_entered:
            self._unit.focus()

    def _answer(self, value):
        self._say(self._taken(value))
        self._prediction.answer(value, self._say)
        _open.add(self)

    def _taken(self, value):
        return "Skipped." if value is None else f"Remembered: {html.escape(self._prediction.said(value))}."

    def _settle(self):
        """Replace an answered field, wherever it is shown, by a line, which a saved notebook keeps."""
        made = self._prediction
        if made.value is None and not made.is_skipped:
            return
        _open.discard(self)
        told = "No prediction" if made.is_skipped else f"Your prediction: {made.said(made.value)}"
        told = f"{made.question} {told}. Run the cell above again to change it."
        for shown in self._shown:
            shown.update({"text/html": html.escape(told), "text/plain": told}, raw=True)

    def _say(self, text):
        self._status.value = f'<span role="status">{text}</span>'


def _number(typed):
    """Return what was typed as a number; a comma is a decimal one. Raises ValueError, in words for the student."""
    if re.fullmatch(r"\s*[+-]?[1-9]\d{0,2},\d{3}\s*", typed):
        raise ValueError(f"“{typed}” may be two numbers: write {typed.replace(',', '')} or {typed.replace(',', '.')}.")
    try:
        return float(typed.replace(",", "."))
    except ValueError:
        raise ValueError(f"“{typed}” is not a number: write it like 2.5, 1500 or 1e-3.") from None


_open = set()  # the fields that are shown, and not yet replaced by a line
_ended_s = None  # when the last cell ended
_idle_s = 0.0  # how long the kernel had nothing to do before the cell that runs


def _watch_the_kernel():
    """Note from now on when cells begin and end."""
    from IPython import get_ipython

    global _ended_s
    if _ended_s is None:
        _ended_s = time.monotonic()
        events = get_ipython().events
        events.register("pre_run_cell", _begin)
        events.register("post_run_cell", _end)


def _begin(_):
    global _idle_s
    _idle_s = time.monotonic() - _ended_s
    for field in tuple(_open):
        field._settle()


def _end(_):
    global _ended_s
    _ended_s = time.monotonic()


def ran_by_itself():
    """Return whether the cell that runs was not queued behind another one."""
    return _idle_s >= IDLE_S
