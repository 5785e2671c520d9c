"""Measurements: curves, bars, timelines, maps."""

import bisect
import statistics

from .passes import draw_tasks, name_tasks
from .style import (
    COLOURS,
    DASHES,
    HATCHES,
    MARKERS,
    OWN_COLOURS,
    draw_prediction,
    keys,
    new_figure,
    pale,
    show,
    tick_units,
)


def lines(
    series, xlabel, ylabel, alt, title="", log="", recorded=None, prediction=None, marks=True, source="", units=None
):
    """Draw {name: (x values, y values)} or {name: (x, y, (low, high))}, the last with bars from low to high.

    `log` is "", "x" (to the base 2), "y" (to the base 10) or "xy" (both to the base 2); `recorded` are further series,
    measured elsewhere, with the source in their name; `prediction` is {x: y}, the student's, where a y of None stands
    for a prediction that was not made; without `marks` only the line is drawn. `source` names where all values are
    from, if not from this machine. `units` is {"x" or "y": "bytes", "seconds" or "bytes/s"}: what the values are, for
    ticks such as 64 KiB, 10 ms or 1 GB/s.
    """
    num_names = len(series) + len(recorded or {}) + any(value is not None for value in (prediction or {}).values())
    is_outside = num_names > (2 if recorded else 3)  # many names stand above the axes, where they hide no point
    height = 2.9 + 0.1 * num_names if is_outside else 2.8
    with new_figure(xlabel, ylabel, title, height, source) as (figure, axes):
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
        for i, (name, (x, y)) in enumerate((recorded or {}).items()):
            axes.plot(
                x, y, label=name, color=("0.5", "0.2")[i % 2], marker=MARKERS[-1 - i % 7], linestyle=":", markersize=5
            )
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


def medians(runs, places, xlabel, ylabel, alt, title="", **settings):
    """Draw {name: [a run's points (x, y), in order of x]}: at each of `places` the median over runs, with the range.

    A run's value at a place is that of its last point up to there. A line ends where the first of its runs ends.
    `settings` are those of `lines`.
    """
    series = {}
    for name, curves in runs.items():
        first, last = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
        reached = [x for x in places if first <= x <= last]
        values = [[_value_at(curve, x) for curve in curves] for x in reached]
        series[name] = (
            reached,
            [statistics.median(each) for each in values],
            ([min(each) for each in values], [max(each) for each in values]),
        )
    lines(series, xlabel, ylabel, alt, title, **settings)


def _value_at(points, x):
    """The y of the last of `points`, (x, y) in order of x, up to `x`."""
    return points[bisect.bisect_right(points, x, key=lambda point: point[0]) - 1][1]


def bars(values, ylabel, alt, title="", spread=None, prediction=None, source=""):
    """Draw {name: value} as bars; `spread` is {name: (low, high)}, `prediction` is {name: value} as in `lines`.

    `source` names where the values are from, if not from this machine.
    """
    with new_figure("", ylabel, title, source=source) as (figure, axes):
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


def stacked_bars(parts, ylabel, alt, title="", xlabel="", source="", limit=None):
    """Draw {bar: {part: value}}, one stacked bar each, parts in the same colour and hatch throughout.

    `limit` is (name, value) of a line across, which bars may or may not exceed. `source` names where the values are
    from, if not from this machine.
    """
    with new_figure(xlabel, ylabel, title, source=source) as (figure, axes):
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


def timeline(rows, alt, title="", xlabel="time (ms)", source=""):
    """Draw {row: [(begin, end, what)]} as one bar a span; the same `what` has the same colour and hatch everywhere.

    `source` says where the times are from, if they were not measured on this machine.
    """
    with new_figure(xlabel, "", title, height=0.8 + 0.45 * len(rows), source=source) as (figure, axes):
        kinds = list(dict.fromkeys(what for spans in rows.values() for _, _, what in spans))
        for y, spans in enumerate(rows.values()):
            for begin, end, what in spans:
                i = kinds.index(what) % 7
                axes.barh(
                    y, end - begin, 0.6, begin, color=COLOURS[i], hatch=HATCHES[i], edgecolor="white", linewidth=0.3
                )
        axes.legend(handles=keys(kinds), loc="upper left", bbox_to_anchor=(1, 1))
        axes.set_yticks(range(len(rows)), list(rows))
        axes.invert_yaxis()
        left, right = axes.get_xlim()
        axes.set_xlim(left=0 if 0 < left < right / 10 else left)  # what begins near 0 is drawn from 0
        axes.grid(axis="y", visible=False)
        show(figure, alt)


def gantt(spans, alt, title="", xlabel="time", num_stages=None, source=""):
    """Draw (stage, micro_batch, phase, begin, end) as a box each: a row a stage, a colour and hatch a phase, idle time
    white.

    The number in a box is its micro-batch. `num_stages` gives the same height to charts of fewer stages. `source` says
    where the times are from, if they were not measured on this machine.
    """
    rows = max(num_stages or 0, 1 + max(span[0] for span in spans))
    whole = max(span[4] for span in spans) - min(span[3] for span in spans)
    with new_figure(xlabel, "", title, height=1.25 + 0.36 * rows, source=source) as (figure, axes):
        draw_tasks(axes, spans, whole)
        name_tasks(figure)
        axes.set_yticks(range(rows), [f"stage {stage}" for stage in range(rows)])
        axes.set_ylim(rows - 0.5, -0.5)
        axes.set_xlim(0, whole)
        axes.grid(visible=False)
        show(figure, alt)


def winners(x, y, values, xlabel, ylabel, alt, title="", source=""):
    """Draw a map: the cell at (x[i], y[j]) takes colour and hatch of the method with the smallest
    `values[method][j][i]`.

    Both axes are to the base 2. `source` says where the values are from, if they were not measured on this machine.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Rectangle

    names = list(values)
    best = [
        [min(range(len(names)), key=lambda k: values[names[k]][j][i]) for i in range(len(x))] for j in range(len(y))
    ]
    with new_figure(xlabel, ylabel, title, height=3.2, source=source) as (figure, axes):
        axes.pcolormesh(
            best,
            cmap=ListedColormap([pale(COLOURS[k % 7]) for k in range(len(names))]),
            vmin=0,
            vmax=max(1, len(names) - 1),
        )
        for j, row in enumerate(best):
            for i, k in enumerate(row):
                axes.add_patch(
                    Rectangle((i, j), 1, 1, fill=False, hatch=HATCHES[k % 7], edgecolor="white", linewidth=0)
                )
        figure.legend(handles=keys(names, pale), loc="outside upper right", ncols=min(3, len(names)))
        axes.set_xticks(
            [i + 0.5 for i in range(len(x))], [f"{value:g}" for value in x], rotation=45 if len(x) > 10 else 0
        )
        axes.set_yticks([j + 0.5 for j in range(len(y))], [f"{value:g}" for value in y])
        axes.grid(visible=False)
        show(figure, alt)


def ladder(rungs, values, xlabel, alt, title="", recorded=None, prediction=None, memory=None):
    """Draw {rung: (value, low, high)} against the list of all `rungs`, from the top down; a rung without a value is
    "not here".

    `recorded` is {machine: {rung: value}}, measured elsewhere; `prediction` is {rung: value} as in `lines`. The axis is
    to the base 10, because the fastest machine drawn may be a thousand times as fast as the slowest. `memory` is {rung:
    MB}, drawn in a panel of its own.
    """
    from matplotlib.ticker import LogLocator

    with new_figure(xlabel, "", title, height=1.4 + 0.27 * len(rungs) + 0.17 * len(recorded or {})) as (figure, axes):
        if memory:
            axes = _beside_memory(figure, axes, rungs, memory)
        place = {rung: y for y, rung in enumerate(rungs)}
        here = [rung for rung in rungs if rung in values]
        medians, lows, highs = zip(*(values[rung] for rung in here))
        reach = [[m - low for m, low in zip(medians, lows)], [high - m for m, high in zip(medians, highs)]]
        style = {
            "color": COLOURS[0],
            "marker": MARKERS[0],
            "markersize": 5,
            "capsize": 3,
            "linestyle": "-",
            "linewidth": 1,
        }
        axes.errorbar(medians, [place[rung] for rung in here], xerr=reach, label="this machine", **style)
        for rung, median, high in zip(here, medians, highs):
            axes.annotate(
                f"{median:,.0f}", (high, place[rung]), (5, 0), textcoords="offset points", va="center", fontsize=7.5
            )
        for i, (machine, there) in enumerate((recorded or {}).items()):
            points = [(value, place[rung]) for rung, value in there.items() if rung in place]
            look = {"color": "0.5", "marker": MARKERS[-1 - i % 7], "linestyle": ":", "markersize": 4}
            axes.plot(*zip(*points), label=f"recorded on {machine}", **look)
        axes.set_xscale("log")
        left, right = axes.get_xlim()
        axes.xaxis.set_major_locator(
            LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7) if right < 5 * left else (1, 2, 5) if right < 50 * left else (1,))
        )
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.xaxis.set_minor_formatter("")
        for rung in rungs:
            if rung not in values:
                look = {
                    "va": "center",
                    "fontsize": 7.5,
                    "color": "0.4",
                    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1},
                }
                axes.text(0.01, place[rung], "not here", transform=axes.get_yaxis_transform(), **look)
        draw_prediction(axes, {value: place[rung] if value else None for rung, value in (prediction or {}).items()})
        axes.set_yticks(range(len(rungs)), rungs)
        axes.set_ylim(len(rungs) - 0.5, -0.5)
        axes.margins(x=0.12)
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.2))
        show(figure, alt)


def _beside_memory(figure, axes, rungs, memory):
    """Replace `axes` by two that share their rungs, draw the memory on the right, and return the one on the left."""
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(2.4, 1))
    left.set_xlabel(axes.get_xlabel())
    left.set_title(axes.get_title(loc="left"))
    axes.remove()
    places = [y for y, rung in enumerate(rungs) if rung in memory]
    sizes = [memory[rungs[y]] for y in places]
    right.barh(places, sizes, 0.5, color=pale(COLOURS[1]), hatch=HATCHES[1], edgecolor="white")
    for y, size in zip(places, sizes):
        right.annotate(f"{size:.0f}", (size, y), (3, 0), textcoords="offset points", va="center", fontsize=7.5)
    right.set_xlim(0, 1.25 * max(sizes))
    right.set_xlabel("MB, at the peak")
    right.grid(axis="y", visible=False)
    return left
