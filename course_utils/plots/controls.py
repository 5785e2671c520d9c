"""Figures with controls: sliders and drop-down lists above the figure, with their labels in full."""

from .. import notebook
from ..extras import is_installed
from .style import handed_over

_SLIDER = {"width": "min(100%, 36em)"}


def explore(draw, button=None, **controls):
    """Show the figure that `draw` makes, with a control above it for each of its arguments.

    `controls` is {argument: (label, start value, values)}: a range gives a slider, a list of strings a drop-down list.
    Each change redraws the figure; if `button`, a label, is given, only a press of that button does. In a notebook that
    is recorded or tested, or where ipywidgets is missing, only the figure for the start values is shown.
    """
    start = {argument: value for argument, (_, value, _) in controls.items()}
    if not notebook.is_watched() or not is_installed("ipywidgets"):
        draw(**start)
        return
    import ipywidgets
    from IPython.display import display

    widgets = {argument: _control(*control) for argument, control in controls.items()}
    above = list(widgets.values())
    if button is not None:
        above.append(ipywidgets.Button(description=button, button_style="primary", layout={"width": "max-content"}))
    display(ipywidgets.VBox(above))
    figure = display(_drawn(draw, start), raw=True, display_id=True)

    def draw_again(_):
        figure.update(_drawn(draw, {name: widget.value for name, widget in widgets.items()}), raw=True)

    if button is not None:
        above[-1].on_click(draw_again)
    for widget in widgets.values() if button is None else ():
        widget.observe(draw_again, "value")


def _control(label, start, values):
    import ipywidgets

    look = {"description": label, "style": {"description_width": "initial"}}
    if isinstance(values, range):
        # Drawing takes a moment, so redraw only when the handle is released.
        return ipywidgets.IntSlider(
            start, values[0], values[-1], step=values.step, continuous_update=False, layout=_SLIDER, **look
        )
    return ipywidgets.Dropdown(options=list(values), value=start, layout={"width": "max-content"}, **look)


def _drawn(draw, arguments):
    """Return what `draw` shows, as a MIME bundle."""
    with handed_over() as bundles:
        draw(**arguments)
    return bundles[-1]
