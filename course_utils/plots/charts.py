"""Charts of measurements: curves, bars and timelines."""

from .style import (
    COLOURS,
    DASHES,
    HATCHES,
    MARKERS,
    OWN_COLOURS,
    draw_prediction,
    new_figure,
    show,
    tick_units,
)


def lines(
    series,
    xlabel,
    ylabel,
    alt,
    title="",
    log="",
    recorded=None,
    prediction=None,
    marks=True,
    source="",
    placement=None,
    units=None,
):
    """Draw {name: (x values, y values)} or {name: (x, y, (low, high))}, the latter with error bars from low to high.

    `log` is "", "x" (base 2), "y" (base 10) or "xy" (both base 2). `recorded` has further series, measured elsewhere,
    with the source in their names. `prediction` is the student's {x: y}, with y None if no prediction was made. Without
    `marks`, only lines are drawn. `units` is {"x" or "y": "bytes", "seconds" or "bytes/s"}: the unit of the values, for
    ticks such as 64 KiB, 10 ms or 1 GB/s.

    The caption says where the values come from, and needs one of two. `placement` is what a measurement used: the
    placement of a launch (`run.placement`), a torch.device, or a list of these. `source` is the origin of values that
    were counted, computed or published; beside a placement, it says what else the measurement depended on.
    """
    num_names = len(series) + len(recorded or {}) + any(value is not None for value in (prediction or {}).values())
    # A long legend is put above the axes, so that it hides no points.
    is_outside = num_names > (2 if recorded else 3)
    height = 2.9 + 0.1 * num_names if is_outside else 2.8
    with new_figure(xlabel, ylabel, title, height, source, placement) as (figure, axes):
        _draw_series(axes, series, recorded or {}, marks)
        if "x" in log:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
        if log == "xy":
            axes.set_yscale("log", base=10 if (units or {}).get("y") in ("seconds", "bytes/s") else 2)
            axes.yaxis.set_major_formatter("{x:g}")
        elif "y" in log:
            axes.set_yscale("log")
        elif all(value >= 0 for _, values, *_ in series.values() for value in values):
            axes.set_ylim(bottom=0)
        tick_units(axes, units or {})
        draw_prediction(axes, prediction)
        if is_outside:
            figure.legend(loc="outside upper right", ncols=2)
        else:
            axes.legend()
        show(figure, alt)


def _draw_series(axes, series, recorded, marks):
    for i, (name, (x, y, *spread)) in enumerate(series.items()):
        colour = OWN_COLOURS.get(name, COLOURS[i % 7])
        style = {
            "color": colour,
            "marker": MARKERS[i % 7] if marks else "",
            "linestyle": DASHES[i % 7],
            "markersize": 4,
        }
        if spread:
            low, high = spread[0]
            reach = [[a - b for a, b in zip(y, low)], [b - a for a, b in zip(y, high)]]
            axes.errorbar(x, y, yerr=reach, label=name, capsize=3, **style)
        else:
            axes.plot(x, y, label=name, **style)
    for i, (name, (x, y)) in enumerate(recorded.items()):
        axes.plot(
            x, y, label=name, color=("0.5", "0.2")[i % 2], marker=MARKERS[-1 - i % 7], linestyle=":", markersize=5
        )


def bars(values, ylabel, alt, title="", spread=None, prediction=None, source="", placement=None):
    """Draw {name: value} as bars; `spread` is {name: (low, high)}, `prediction` is {name: value} as in `lines`.

    `source` and `placement` are those of `lines`.
    """
    with new_figure("", ylabel, title, source=source, placement=placement) as (figure, axes):
        axes.bar(list(values), list(values.values()), color=COLOURS[0], width=0.6)
        for i, (name, value) in enumerate(values.items()):
            top = value
            if spread:
                low, top = spread[name]
                axes.errorbar(i, value, [[value - low], [top - value]], color="black", capsize=3)
            axes.annotate(
                f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}",
                (i, top),
                ha="center",
                va="bottom",
                xytext=(0, 2),
                textcoords="offset points",
            )
        draw_prediction(axes, prediction)
        if any(value is not None for value in (prediction or {}).values()):
            axes.legend(loc="upper right")
        axes.margins(y=0.15)
        axes.grid(axis="x", visible=False)
        show(figure, alt)


def stacked_bars(parts, ylabel, alt, title="", xlabel="", source="", placement=None, limit=None):
    """Draw {bar: {part: value}} as stacked bars; a part has the same colour and hatch in every bar.

    `limit` is (name, value) of a horizontal line. `source` and `placement` are those of `lines`.
    """
    with new_figure(xlabel, ylabel, title, source=source, placement=placement) as (figure, axes):
        names = list(dict.fromkeys(part for values in parts.values() for part in values))
        bottom = [0.0] * len(parts)
        for i, name in enumerate(names):
            heights = [values.get(name, 0) for values in parts.values()]
            axes.bar(
                list(parts),
                heights,
                0.6,
                bottom,
                label=name,
                color=COLOURS[i % 7],
                hatch=HATCHES[i % 7],
                edgecolor="white",
            )
            bottom = [a + b for a, b in zip(bottom, heights)]
        if limit:
            axes.axhline(limit[1], color="0.2", linestyle="--", linewidth=1.2, label=limit[0])
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1, 1))
        axes.grid(axis="x", visible=False)
        show(figure, alt)


def timeline(rows, alt, title="", xlabel="time (ms)", source="", placement=None):
    """Draw {row: [(begin, end, what)]} as one bar per span; the same `what` always has the same colour and hatch.

    What is called "other" is grey. `source` and `placement` are those of `lines`.
    """
    timelines({title: rows}, alt, xlabel, source, placement)


def timelines(panels, alt, xlabel="time (ms)", source="", placement=None):
    """Draw {title: rows of `timeline`} below one another, each with a time axis of its own and the same colours."""
    from matplotlib.patches import Patch

    looks = _looks(what for rows in panels.values() for spans in rows.values() for _, _, what in spans)
    sizes = [len(rows) for rows in panels.values()]
    height = sum(0.8 + 0.45 * size for size in sizes)
    with new_figure("", "", "", height, source=source, placement=placement) as (figure, axes):
        axes.remove()
        stack = figure.subplots(len(panels), 1, squeeze=False, height_ratios=sizes)[:, 0]
        for axes, (title, rows) in zip(stack, panels.items()):
            _draw_spans(axes, rows, looks)
            axes.set_title(title)
            axes.set_xlabel(xlabel)
        keys = [Patch(label=what, facecolor=c, hatch=h, edgecolor="white") for what, (c, h) in looks.items()]
        stack[0].legend(handles=keys, loc="upper left", bbox_to_anchor=(1, 1))
        show(figure, alt)


def _looks(kinds):
    """Return {kind: (colour, hatch)}: 49 different ones, and grey for "other", which comes last."""
    kinds = list(dict.fromkeys(kinds))
    looks = {
        kind: (COLOURS[i % 7], HATCHES[(i + i // 7) % 7])
        for i, kind in enumerate(kind for kind in kinds if kind != "other")
    }
    return looks | ({"other": ("0.6", "")} if "other" in kinds else {})


def _draw_spans(axes, rows, looks):
    ends = [time for spans in rows.values() for begin, end, _ in spans for time in (begin, end)]
    thin = (max(ends) - min(ends)) / 150  # about two pixels: a white edge or a hatch would hide the bar
    for y, spans in enumerate(rows.values()):
        for begin, end, what in spans:
            colour, hatch = looks[what]
            if end - begin < thin:
                look = {"edgecolor": colour}
            else:
                look = {"edgecolor": "white", "hatch": hatch}
            axes.barh(y, end - begin, 0.6, begin, color=colour, linewidth=0.3, **look)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)  # rows without bars have their place, too
    left, right = axes.get_xlim()
    axes.set_xlim(left=0 if 0 < left < right / 10 else left)  # start at 0 if close to it
    axes.grid(axis="y", visible=False)
