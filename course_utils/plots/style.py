"""What all figures share: palette, style, caption, and output to the notebook.

The palette is Okabe and Ito's, made for colour-blind readers; markers, line styles and hatches repeat the colours'
information, for print in grey.
"""

import base64
import contextlib
import contextvars
import html
import io
import textwrap

from .. import hardware, notebook
from ..extras import require
from ..hardware.sharing import others_at_work

require("figures", "matplotlib")  # here, since all modules that draw import this one; they import matplotlib late

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
# Pipeline schedules and parameter-server rules keep one colour in all figures; in pipelines, blue and orange are
# forward and backward.
OWN_COLOURS = {
    "naive": COLOURS[2],
    "GPipe": COLOURS[4],
    "1F1B": COLOURS[3],
    "asynchronous": COLOURS[2],
    "one worker": COLOURS[3],
}
_CAPTION_WIDTH = 110  # letters that fit below a figure
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "+++", "ooo")
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "hatch.linewidth": 0.5,
}


def pale(colour):
    """Return a light shade of a colour, on which black text is legible."""
    from matplotlib.colors import to_rgb

    return tuple(0.6 + 0.4 * part for part in to_rgb(colour))


def keys(names, shade=lambda colour: colour):
    """Return patches for a legend: the i-th name with the i-th colour, shaded, and the i-th hatch."""
    from matplotlib.patches import Patch

    return [
        Patch(facecolor=shade(COLOURS[i % 7]), hatch=HATCHES[i % 7], edgecolor="white", label=name)
        for i, name in enumerate(names)
    ]


class new_figure:
    """A figure with labelled axes and the origin of its values in its caption, in the course's style.

    `placement` is what a measurement on this machine used: the placement of a launch, a torch.device, or a list of
    these. `source` says where other values come from, and what else a measurement's conditions were. Raises TypeError
    without either: the machine may have a GPU that the measurement did not use.
    """

    def __init__(self, xlabel, ylabel, title, height=2.8, source="", placement=None):
        self._labels, self._height = (xlabel, ylabel, title), height
        self._source, self._placement = source, placement

    def __enter__(self):
        import matplotlib.pyplot as plt

        caption = _caption(self._source, self._placement)
        # Undo the style if this block raises: __exit__ is not called then.
        with contextlib.ExitStack() as stack:
            stack.enter_context(plt.rc_context(STYLE))
            figure, axes = plt.subplots(figsize=(6.4, self._height), layout="constrained")
            xlabel, ylabel, title = self._labels
            axes.set_xlabel(xlabel)
            axes.set_ylabel(ylabel)
            axes.set_title(title)
            figure.supxlabel(caption, x=0.01, ha="left", fontsize=7, color="0.4")
            self._context = stack.pop_all()
        return figure, axes

    def __exit__(self, *exception):
        self._context.__exit__(*exception)


def _caption(source, placement):
    places = placement if isinstance(placement, (list, tuple)) else [] if placement is None else [placement]
    if not source and not places:
        raise TypeError(
            "the figure's caption does not know where its values come from: add placement=run.placement or "
            "placement=device if they were measured, source='…' if they were counted, computed or published"
        )
    parts = [source, hardware.used(*places)]
    others = others_at_work() if places else []
    if others:
        parts.append(f"shared while measured with {'; '.join(others)}")
    return textwrap.fill("; ".join(filter(None, parts)), _CAPTION_WIDTH)


def draw_prediction(axes, prediction):
    """Draw the student's {x: y} as stars; if y is None, the caption says that no prediction was made."""
    look = {"marker": "*", "markersize": 13, "color": COLOURS[4], "markeredgecolor": "black", "linestyle": ""}
    for place, value in (prediction or {}).items():
        if value is None:
            axes.figure.lacks_prediction = True
        else:
            axes.plot(place, value, label="your prediction", **look)


def tick_units(axes, units):
    """Format ticks in bytes as 64 KiB, in seconds as 10 µs, in bytes/s as 10 GB/s; `units` as in `lines`."""
    scales = {"bytes": (2**10, ("B", "KiB", "MiB", "GiB", "TiB"), 0), "seconds": (1000, ("ns", "µs", "ms", "s"), 3)}
    scales["bytes/s"] = 1000, ("B/s", "kB/s", "MB/s", "GB/s", "TB/s"), 0
    for axis, unit in units.items():
        step, names, base = scales[unit]

        def say(value, _, step=step, names=names, base=base):
            power = 0
            while abs(value) >= step and base + power < len(names) - 1:
                value, power = value / step, power + 1
            while 0 < abs(value) < 0.9995 and base + power > 0:
                value, power = value * step, power - 1
            return f"{value:.3g} {names[base + power]}" if value else "0"

        getattr(axes, f"{axis}axis").set_major_formatter(say)


_taker = contextvars.ContextVar("_taker", default=None)


@contextlib.contextmanager
def handed_over():
    """Yield a list that collects the figures shown by this thread in this block, in a watched notebook."""
    bundles = []
    token = _taker.set(bundles)
    try:
        yield bundles
    finally:
        _taker.reset(token)


def show(figure, alt):
    """Show the figure in the notebook with its alternative text, and close it; outside a notebook, only close it."""
    import matplotlib.pyplot as plt
    from IPython.display import Image, display

    image = _png(figure)
    plt.close(figure)
    unset = " (No prediction was made.)" if getattr(figure, "lacks_prediction", False) else ""
    caption = f"Figure: {alt}{unset}"
    if notebook.is_watched():
        bundle, taker = {"text/plain": caption, "text/html": _element(image, alt, caption)}, _taker.get()
        display(bundle, raw=True) if taker is None else taker.append(bundle)
        return
    display(Image(image, format="png", alt=alt))
    print("\n".join(textwrap.wrap(caption, 110)))


def _element(png, alt, caption):
    """Return the figure as HTML, because JupyterLab shows an image/png without its alternative text.

    This is not for recorded notebooks: other programs that show them may omit an image in HTML.
    """
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return (
        f'<figure style="margin: 0"><img src="{source}" alt="{html.escape(alt)}" style="max-width: 100%">'
        f'<figcaption style="max-width: 52em">{html.escape(caption)}</figcaption></figure>'
    )


def _png(figure):
    """Return the figure as PNG with a palette: a third of the bytes, since notebooks keep figures in git.

    MAXCOVERAGE keeps the colour of a thin line; the default method would make it grey.
    """
    from PIL import Image

    plain, small = io.BytesIO(), io.BytesIO()
    figure.savefig(plain, format="png", dpi=110)
    palette = Image.open(plain).convert("RGB").quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    palette.save(small, format="png", optimize=True)
    return small.getvalue()
