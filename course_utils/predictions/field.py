"""The field below a question, and whether the student had time to type into it."""

from __future__ import annotations

import html
import re
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .prediction import Prediction

IDLE_S = 2.0  # Run All leaves less between two cells; whoever reads a question, more
# What had the keyboard goes with the field. A page that has it nowhere also does nothing with Shift+Enter.
_TO_THE_CELL = """
if (document.activeElement === document.body) {
  const tab = document.querySelector(".lm-TabBar-tab.jp-mod-current");
  const page = document.getElementById(tab?.dataset.id) ?? document;
  page.querySelector(".jp-Cell.jp-mod-active")?.focus();
}"""


class Field:
    """Widgets that ask for a number or a choice; what is typed goes to `prediction.answer`."""

    def __init__(self, prediction: Prediction):
        import ipywidgets

        self._prediction, self._shown = prediction, []
        label = "Your prediction:"
        if prediction.choices:  # JupyterLab takes the arrow keys from a list
            self._buttons = {each: self._button(str(each), each) for each in prediction.choices}
            asked = [ipywidgets.Label(label), *self._buttons.values()]
        else:
            value = "" if prediction.value is None else f"{prediction.value:.12g}"
            self._text = ipywidgets.Text(
                value, description=label, placeholder="a number, then Enter", continuous_update=False,
                style={"description_width": "initial"},
            )  # fmt: skip
            self._text.observe(self._take, "value")
            asked = [self._text, ipywidgets.Label(prediction.unit)]
        question = ipywidgets.HTML(html.escape(prediction.question))
        skip = self._button("Skip", None, tooltip="no prediction")
        self._status = ipywidgets.HTML()
        self._box = ipywidgets.VBox([question, ipywidgets.HBox([*asked, skip]), self._status])
        # A link that the browser keeps: as soon as it draws widgets, it copies True to `drawn`, and tells the kernel.
        source, self._drawn = ipywidgets.Checkbox(True), ipywidgets.Checkbox(False)
        self._link = ipywidgets.jsdlink((source, "value"), (self._drawn, "value"))
        if prediction.is_answered:
            self._say(self._taken(prediction.value))

    def _button(self, text, answer, **look):
        import ipywidgets

        button = ipywidgets.Button(description=text, layout={"width": "max-content"}, **look)
        button.on_click(lambda _: self._answer(answer))
        return button

    def show(self):
        """Display the field, once more if it is displayed already; nothing is left of it where widgets are unknown.

        Once it is answered, a line takes its place: of a widget, a notebook that is opened the next day shows only
        that its model was not found. One that was answered before stays open until the next cell begins.
        """
        from IPython.display import DisplayHandle

        _watch_the_kernel()
        _open.add(self)
        self._shown.append(DisplayHandle())
        self._shown[-1].display(self._box._repr_mimebundle_() | {"text/plain": ""}, raw=True)

    def is_drawn(self):
        """Return whether a front end has drawn widgets."""
        return self._drawn.value

    def _take(self, change):
        if change["new"] == "":
            return
        try:
            value = self._prediction.understood(_number(change["new"]))
        except ValueError as error:
            self._say(html.escape(str(error)))
        else:
            self._answer(value)

    def _answer(self, value):
        self._say(self._taken(value))  # a page that was loaded again is not told what takes the field's place
        troubles = []
        self._prediction.answer(value, troubles.append)
        for shown in self._shown:
            shown.update({"application/javascript": _TO_THE_CELL, "text/plain": ""}, raw=True)
        self._settle(*troubles)

    def _taken(self, value):
        return "Skipped." if value is None else f"Remembered: {html.escape(self._prediction.said(value))}."

    def _settle(self, *more):
        """Replace an answered field, wherever it is shown, by a line, which a saved notebook keeps; `more` follows."""
        if not self._prediction.is_answered:
            return
        _open.discard(self)
        made = self._prediction
        told = "No prediction" if made.value is None else f"Your prediction: {made.said(made.value)}"
        told = f"{made.question} {told}."
        for i, shown in enumerate(self._shown):
            how = ["Run this cell again to change it."] * (i == 0)  # shown again, it is below the cell that measures
            line = " ".join([told, *how, *more])
            shown.update({"text/html": html.escape(line), "text/plain": line}, raw=True)

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
