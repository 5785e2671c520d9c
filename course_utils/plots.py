"""Every figure of the course: one palette, units on the axes, the machine in the caption, a text for those who cannot see it.

The colours are Okabe and Ito's, which survive colour-blindness; markers, line styles and hatches repeat what they say,
for print in grey. Functions take plain values and show the figure; `alt` says in one line what is to be seen, and is
printed below the figure because JupyterLab does not pass alternative texts on.
"""

import io
import textwrap

from . import hardware
from .hardware.sharing import others_at_work

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "+++", "ooo")
_STYLE = {
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


def lines(series, xlabel, ylabel, alt, title="", log="", recorded=None, prediction=None, marks=True):
    """Draw {name: (x values, y values)} or {name: (x, y, (low, high))}, the last with bars from low to high.

    `log` is "", "x" (to the base 2), "y" (to the base 10) or "xy" (both to the base 2); `recorded` are further series, measured elsewhere, with the source
    in their name; `prediction` is {x: y}, the student's, where a y of None stands for a prediction that was not made;
    without `marks` only the line is drawn.
    """
    with _new(xlabel, ylabel, title) as (figure, axes):
        for i, (name, (x, y, *spread)) in enumerate(series.items()):
            style = {"color": COLOURS[i % 7], "marker": MARKERS[i % 7] if marks else "", "linestyle": DASHES[i % 7], "markersize": 4}
            if spread:
                low, high = spread[0]
                reach = [[a - b for a, b in zip(y, low)], [b - a for a, b in zip(y, high)]]
                axes.errorbar(x, y, yerr=reach, label=name, capsize=3, **style)
            else:
                axes.plot(x, y, label=name, **style)
        for i, (name, (x, y)) in enumerate((recorded or {}).items()):
            axes.plot(x, y, label=name, color="0.5", marker=MARKERS[-1 - i % 7], linestyle=":", markersize=4)
        if "x" in log:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
        if log == "xy":
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter("{x:g}")
        elif "y" in log:
            axes.set_yscale("log")
        elif all(value >= 0 for _, values, *_ in series.values() for value in values):
            axes.set_ylim(bottom=0)
        _draw_prediction(axes, prediction)
        axes.legend()
        _show(figure, alt)


def bars(values, ylabel, alt, title="", log=False, spread=None, prediction=None, source=""):
    """Draw {name: value} as bars; `spread` is {name: (low, high)}, `prediction` is {name: value} as in `lines`.

    `source` names where the values are from, if not from this machine.
    """
    with _new("", ylabel, title, source=source) as (figure, axes):
        axes.bar(list(values), list(values.values()), color=COLOURS[0], width=0.6)
        for i, (name, value) in enumerate(values.items()):
            top = value
            if spread:
                low, top = spread[name]
                axes.errorbar(i, value, [[value - low], [top - value]], color="black", capsize=3)
            axes.annotate(f"{value:.3g}", (i, top), ha="center", va="bottom", xytext=(0, 2), textcoords="offset points")
        if log:
            axes.set_yscale("log")
        _draw_prediction(axes, prediction)
        axes.margins(y=0.15)
        axes.grid(axis="x", visible=False)
        _show(figure, alt)


def stacked_bars(parts, ylabel, alt, title="", xlabel=""):
    """Draw {bar: {part: value}}, one stacked bar each, parts in the same colour and hatch throughout."""
    with _new(xlabel, ylabel, title) as (figure, axes):
        names = list(dict.fromkeys(part for values in parts.values() for part in values))
        bottom = [0.0] * len(parts)
        for i, name in enumerate(names):
            heights = [values.get(name, 0) for values in parts.values()]
            axes.bar(list(parts), heights, 0.6, bottom, label=name, color=COLOURS[i % 7], hatch=HATCHES[i % 7], edgecolor="white")
            bottom = [a + b for a, b in zip(bottom, heights)]
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1, 1))
        axes.grid(axis="x", visible=False)
        _show(figure, alt)


def timeline(rows, alt, title="", xlabel="time (ms)"):
    """Draw {row: [(begin, end, what)]} as one bar a span; the same `what` has the same colour and hatch everywhere."""
    with _new(xlabel, "", title, height=0.8 + 0.45 * len(rows)) as (figure, axes):
        kinds = list(dict.fromkeys(what for spans in rows.values() for _, _, what in spans))
        for y, spans in enumerate(rows.values()):
            for begin, end, what in spans:
                i = kinds.index(what) % 7
                axes.barh(y, end - begin, 0.6, begin, color=COLOURS[i], hatch=HATCHES[i], edgecolor="white", linewidth=0.3)
        from matplotlib.patches import Patch

        keys = [Patch(facecolor=COLOURS[i % 7], hatch=HATCHES[i % 7], edgecolor="white", label=kind) for i, kind in enumerate(kinds)]
        axes.legend(handles=keys, loc="upper left", bbox_to_anchor=(1, 1))
        axes.set_yticks(range(len(rows)), list(rows))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        _show(figure, alt)


def diagram(boxes, arrows, alt, height=2.6):
    """Draw an idea, not a measurement: boxes {name: (x, y, text)}, arrows [(from name, to name, text)].

    Arrows run from centre to centre behind the boxes; "<->" at the head of an arrow's text gives it two heads.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(6.8, height), layout="constrained")
        axes.axis("off")
        patches = {}
        for name, (x, y, text) in boxes.items():
            look = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": COLOURS[0], "linewidth": 1.2}
            patches[name] = axes.text(x, y, text, ha="center", va="center", bbox=look, zorder=3, fontsize=8.5)
        for start, end, text in arrows:
            (x0, y0, _), (x1, y1, _) = boxes[start], boxes[end]
            heads = "<->" if text.startswith("<->") else "->"
            look = {"arrowstyle": heads, "color": COLOURS[1], "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
            look |= {"patchA": patches[start].get_bbox_patch(), "patchB": patches[end].get_bbox_patch()}
            axes.annotate("", (x1, y1), (x0, y0), arrowprops=look)
            place, where = ((x0 + x1) / 2, (y0 + y1) / 2), "left" if x0 == x1 else "center"
            offset = (4, 0) if x0 == x1 else (0, 4)
            axes.annotate(
                text.removeprefix("<->"), place, offset, textcoords="offset points", ha=where, va="bottom", fontsize=8
            )
        xs, ys = [x for x, _, _ in boxes.values()], [y for _, y, _ in boxes.values()]
        axes.set_xlim(min(xs) - 0.6, max(xs) + 0.6)
        axes.set_ylim(min(ys) - 0.5, max(ys) + 0.5)
        _show(figure, alt)


def _draw_prediction(axes, prediction):
    for place, value in (prediction or {}).items():
        if value is None:
            axes.plot([], [], " ", label="no prediction was made")
            axes.legend(loc="upper right")
        else:
            axes.plot(place, value, marker="*", markersize=13, color=COLOURS[4], markeredgecolor="black", linestyle="", label="your prediction")
            axes.legend(loc="upper right")


class _new:
    """A figure with labelled axes and the machine below it, in the course's style."""

    def __init__(self, xlabel, ylabel, title, height=2.8, source=""):
        self._labels, self._height, self._source = (xlabel, ylabel, title), height, source

    def __enter__(self):
        import matplotlib.pyplot as plt

        self._context = plt.rc_context(_STYLE)
        self._context.__enter__()
        figure, axes = plt.subplots(figsize=(6.4, self._height), layout="constrained")
        xlabel, ylabel, title = self._labels
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        axes.set_title(title)
        figure.supxlabel(self._source or _caption(), x=0.01, ha="left", fontsize=7, color="0.4")
        return figure, axes

    def __exit__(self, *exception):
        self._context.__exit__(*exception)


def _caption():
    others = others_at_work()
    shared = f"; shared while measured with {'; '.join(others)}" if others else ""
    return f"this machine: {hardware.machine()}{shared}"


def _show(figure, alt):
    """Put the figure into the notebook (elsewhere nowhere), with its alternative text; then forget it."""
    import matplotlib.pyplot as plt
    from IPython.display import Image, display

    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=110)
    plt.close(figure)
    display(Image(png.getvalue(), format="png", alt=alt))
    print("\n".join(textwrap.wrap(f"Figure: {alt}", 110)))


def thread_map(touches, alt, title="", per_row=16):
    """Draw which thread touches which element, {element: [(block, thread, turn), …]}; ints, or tuples in 2-D.

    A box is an element, its index above it. Colour and "b" stand for the block, "t" for the thread, hatches for the turn,
    which counts a thread's elements from 0. A box without a thread is dashed; one with several has a thick frame and says
    how many. Of more than 64 elements the first 64 are drawn, and the figure says so.
    """
    import matplotlib.pyplot as plt
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch, Rectangle

    shown = list(touches.items())[:64]
    everyone = [who for _, threads in shown for who in threads]
    blocks, turns = (sorted({who[i] for who in everyone}) for i in (0, 2))
    pale = {block: [0.6 + 0.4 * part for part in to_rgb(COLOURS[i % 7])] for i, block in enumerate(blocks)}
    hatches = {turn: HATCHES[i % 7] for i, turn in enumerate(turns)}
    places = [element if isinstance(element, tuple) else divmod(element, per_row) for element, _ in shown]
    num_rows, num_columns = (max(sizes) + 1 for sizes in zip((0, 0), *places))
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 0.9 + 0.62 * num_rows), layout="constrained")
        for (element, threads), (row, column) in zip(shown, places):
            look = {"facecolor": "white", "edgecolor": "0.6", "linestyle": "--"}
            words = "–"
            if threads:
                block, thread, turn = threads[-1]
                look = {"facecolor": pale[block], "edgecolor": "white", "hatch": hatches[turn], "linewidth": 0}
                words = f"b{_index(block)}\nt{_index(thread)}"
            axes.add_patch(Rectangle((column, row), 0.92, 0.66, **look))
            if len(threads) > 1:
                axes.add_patch(Rectangle((column, row), 0.92, 0.66, fill=False, edgecolor="black", linewidth=2))
                words += f"\n×{len(threads)}"
            axes.text(column + 0.46, row + 0.35, words, ha="center", va="center", fontsize=7, linespacing=1.15)
            axes.text(column + 0.46, row - 0.03, _index(element), ha="center", va="bottom", fontsize=6, color="0.4")
        # Every seventh block has the same colour, every seventh turn the same hatch.
        keys = [Patch(facecolor=pale[block], label=f"block {_few(blocks[i::7])}") for i, block in enumerate(blocks[:7])]
        for i, turn in enumerate(turns[:7]):
            keys.append(Patch(facecolor="0.8", edgecolor="white", hatch=hatches[turn], label=f"turn {_few(turns[i::7])}"))
        axes.legend(handles=keys, loc="upper left", bbox_to_anchor=(1, 1), handleheight=1.2)
        if len(touches) > len(shown):
            axes.text(0, num_rows, f"the first {len(shown)} of {len(touches)} elements", fontsize=7, va="top")
        axes.set_xlim(0, max(num_columns, per_row))
        axes.set_ylim(num_rows + 0.1, -0.35)
        axes.set_title(title)
        axes.axis("off")
        _show(figure, alt)


def _index(index):
    return ",".join(map(str, index)) if isinstance(index, tuple) else str(index)


def _few(indices):
    return ", ".join(map(_index, indices[:3])) + (", …" if len(indices) > 3 else "")


def ladder(rungs, values, xlabel, alt, title="", recorded=None, prediction=None):
    """Draw {rung: (value, low, high)} against the list of all `rungs`, from the top down; a rung without a value is "not here".

    `recorded` is {machine: {rung: value}}, measured elsewhere; `prediction` is {rung: value} as in `lines`. The axis is to
    the base 10, because the fastest machine drawn may be a thousand times as fast as the slowest.
    """
    with _new(xlabel, "", title, height=1.1 + 0.27 * len(rungs)) as (figure, axes):
        place = {rung: y for y, rung in enumerate(rungs)}
        here = [rung for rung in rungs if rung in values]
        medians, lows, highs = zip(*(values[rung] for rung in here))
        reach = [[m - low for m, low in zip(medians, lows)], [high - m for m, high in zip(medians, highs)]]
        style = {"color": COLOURS[0], "marker": MARKERS[0], "markersize": 5, "capsize": 3, "linestyle": "-", "linewidth": 1}
        axes.errorbar(medians, [place[rung] for rung in here], xerr=reach, label="this machine", **style)
        for rung, median, high in zip(here, medians, highs):
            axes.annotate(f"{median:,.0f}", (high, place[rung]), (5, 0), textcoords="offset points", va="center", fontsize=7.5)
        for i, (machine, there) in enumerate((recorded or {}).items()):
            points = [(value, place[rung]) for rung, value in there.items() if rung in place]
            look = {"color": "0.5", "marker": MARKERS[-1 - i], "linestyle": ":", "markersize": 4}
            axes.plot(*zip(*points), label=f"recorded on {machine}", **look)
        axes.set_xscale("log")
        for rung in rungs:
            if rung not in values:
                axes.text(0.01, place[rung], "not here", transform=axes.get_yaxis_transform(), va="center", fontsize=7.5, color="0.4")
        _draw_prediction(axes, {value: place[rung] if value else None for rung, value in (prediction or {}).items()})
        axes.set_yticks(range(len(rungs)), rungs)
        axes.set_ylim(len(rungs) - 0.5, -0.5)
        axes.margins(x=0.12)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
        _show(figure, alt)
