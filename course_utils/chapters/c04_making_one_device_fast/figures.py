"""Figures of chapter 04: overlap, number formats and the ladder of rungs.

Times in the first are round numbers, not measurements.
"""

from ...plots.style import COLOURS, HATCHES, MARKERS, STYLE, draw_prediction, keys, new_figure, pale, show

_LOAD, _COPY, _STEP = 1.3, 0.6, 1.5  # durations in the drawing
LOADING = ("plain loop", "loader workers", "workers, and prefetch", "data on the device")


def overlaps(alt, num_batches=4):
    """Draw how loading, copying and computing follow or overlap one another in four loops, on one time axis."""
    import matplotlib.pyplot as plt

    rows = ("CPU: load", "copy", "device: step")
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(len(LOADING), 1, figsize=(6.8, 4.6), layout="constrained", sharex=True)
        for axes, way in zip(panels, LOADING):
            spans = loading_spans(way, num_batches)
            for row, batch, begin, end in spans:
                look = {"color": pale(COLOURS[(5, 4, 2)[row]]), "hatch": HATCHES[(0, 1, 2)[row]]}
                axes.barh(row, end - begin, 0.8, begin, edgecolor="white", linewidth=1, **look)
                axes.text((begin + end) / 2, row, str(batch), ha="center", va="center", fontsize=7.5)
            axes.axvline(spans[-1][3], color="0.3", linewidth=1, linestyle="--")
            axes.set_title(way, fontsize=9)
            axes.set_yticks(range(3), rows, fontsize=8)
            axes.set_ylim(2.6, -0.6)
            axes.set_xticks([])
            axes.grid(visible=False)
        panels[-1].set_xlabel("time (lengths are made up); numbers are batches, the dashed line ends the last step")
        panels[-1].set_xlim(0, num_batches * (_LOAD + _COPY + _STEP) + 0.2)
        show(figure, alt)


def loading_spans(way, num_batches):
    """Return [(row, batch, begin, end)] of one of LOADING, in the drawing's units; rows are load, copy and step."""
    loads, copies, steps = [], [], []
    for i in range(num_batches):
        if way == "data on the device":
            begin = steps[-1][1] if steps else 0
            steps.append((begin, begin + _STEP))
            continue
        earlier = [loads[-1][1] if loads else 0]
        earlier += [steps[-1][1]] if way == "plain loop" and steps else []
        earlier += [copies[i - 3][0]] if i >= 3 else []  # workers are at most two batches ahead
        loads.append((max(earlier), max(earlier) + _LOAD))
        ready = [loads[i][1], copies[-1][1] if copies else 0]
        if way != LOADING[2]:
            ready.append(steps[-1][1] if steps else 0)
        elif i >= 2:
            ready.append(steps[i - 2][1])  # memory for two batches: the one in use and the next
        copies.append((max(ready), max(ready) + _COPY))
        begin = max(copies[i][1], steps[-1][1] if steps else 0)
        steps.append((begin, begin + _STEP))
    return [(row, i + 1, *span) for row, spans in enumerate((loads, copies, steps)) for i, span in enumerate(spans)]


_SIGN, _EXPONENT, _MANTISSA = range(3)  # indices into the palette


def bit_layouts(formats, alt):
    """Draw {name: (bits of the exponent, bits of the mantissa)}, a row each, a box for each bit, the range in words.

    For formats of 17 to 31 bits, the rest up to 32 is dashed: those bits are stored but not read.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 0.75 + 0.6 * len(formats)), layout="constrained")
        for y, (name, (exponent, mantissa)) in enumerate(formats.items()):
            parts = [_SIGN] + [_EXPONENT] * exponent + [_MANTISSA] * mantissa
            unread = 32 - len(parts) if 16 < len(parts) < 32 else 0
            for bit, part in enumerate(parts + [None] * unread):
                look = {"facecolor": "white", "edgecolor": "0.6", "linestyle": ":"}
                if part is not None:
                    look = {"facecolor": pale(COLOURS[part]), "hatch": HATCHES[part], "edgecolor": "white"}
                axes.add_patch(Rectangle((bit, y), 0.94, 0.5, linewidth=0.8, **look))
            for left, bits in ((1, exponent), (1 + exponent, mantissa)):
                axes.text(left + bits / 2, y + 0.25, str(bits), ha="center", va="center", fontsize=9, fontweight="bold")
            axes.text(-0.5, y + 0.25, name, ha="right", va="center", fontsize=9)
            largest, steps = (2 - 2.0**-mantissa) * 2.0 ** (2 ** (exponent - 1) - 1), 2.0**-mantissa
            words = f"to {largest:.2g}, steps of {steps:.1g} at 1"
            axes.text(32.6, y + 0.25, words, ha="left", va="center", fontsize=7.5)
        handles = keys(["sign", "exponent: the range", "mantissa: the precision"], pale)
        handles.append(Patch(facecolor="white", edgecolor="0.6", linestyle=":", label="stored, not read"))
        figure.legend(handles=handles, loc="outside lower left", ncols=4)
        axes.set_xlim(-4.5, 44)
        axes.set_ylim(len(formats) - 0.3, -0.15)
        axes.axis("off")
        show(figure, alt)


def ladder(rungs, values, xlabel, alt, title="", recorded=None, prediction=None, memory=None, *, placement):
    """Draw {rung: (times, low, high)} in a row each of all `rungs`, from the top down, on a log10 axis.

    A rung without a value is "not here", and lines have a gap there. `recorded` is {machine: {rung: value}}, measured
    elsewhere; `prediction` is {rung: value} as in `lines`; `memory` is {rung: MB}, drawn in its own panel, with a dash
    for a rung that it lacks.
    """
    from matplotlib.ticker import LogLocator

    height = 1.4 + 0.27 * len(rungs) + 0.17 * len(recorded or {})
    with new_figure(xlabel, "", title, height, placement=placement) as (figure, axes):
        if memory:
            axes = _beside_memory(figure, axes, rungs, memory)
        place = {rung: y for y, rung in enumerate(rungs)}
        here, nowhere = [rung for rung in rungs if rung in values], float("nan")
        medians, lows, highs = zip(*(values.get(rung, [nowhere] * 3) for rung in rungs))
        reach = [[m - low for m, low in zip(medians, lows)], [high - m for m, high in zip(medians, highs)]]
        style = {
            "color": COLOURS[0],
            "marker": MARKERS[0],
            "markersize": 5,
            "capsize": 3,
            "linestyle": "-",
            "linewidth": 1,
        }
        axes.errorbar(medians, range(len(rungs)), xerr=reach, label="this machine", **style)
        for median, high, y in [(values[rung][0], values[rung][2], place[rung]) for rung in here]:
            axes.annotate(f"{median:.2f}", (high, y), (5, 0), textcoords="offset points", va="center", fontsize=7.5)
        for i, (machine, there) in enumerate((recorded or {}).items()):
            points = [(there.get(rung, nowhere), y) for rung, y in place.items()]
            look = {"color": "0.5", "marker": MARKERS[-1 - i % 7], "linestyle": ":", "markersize": 4}
            axes.plot(*zip(*points), label=f"recorded on {machine}", **look)
        axes.set_xscale("log")
        left, right = axes.get_xlim()
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7) if right < 5 * left else (1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        _say_not_here(axes, [place[rung] for rung in rungs if rung not in values])
        draw_prediction(axes, {value: place[rung] if value else None for rung, value in (prediction or {}).items()})
        axes.set_yticks(range(len(rungs)), rungs)
        axes.set_ylim(len(rungs) - 0.5, -0.5)
        axes.margins(x=0.12)
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.2))
        show(figure, alt)


def _say_not_here(axes, places):
    look = {"va": "center", "fontsize": 7.5, "color": "0.4"}
    look["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    for y in places:
        axes.text(0.01, y, "not here", transform=axes.get_yaxis_transform(), **look)


def _beside_memory(figure, axes, rungs, memory):
    """Replace `axes` by two that share their rows, draw the memory on the right, and return the left one."""
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(2.4, 1))
    left.set_xlabel(axes.get_xlabel())
    left.set_title(axes.get_title(loc="left"))
    axes.remove()
    places = [y for y, rung in enumerate(rungs) if rung in memory]
    sizes = [memory[rungs[y]] for y in places]
    right.barh(places, sizes, 0.5, color=pale(COLOURS[1]), hatch=HATCHES[1], edgecolor="white")
    for y, size in zip(places, sizes):
        right.annotate(f"{size:.0f}", (size, y), (3, 0), textcoords="offset points", va="center", fontsize=7.5)
    for y, rung in enumerate(rungs):
        if rung not in memory:
            right.annotate("–", (0, y), (3, 0), textcoords="offset points", va="center", fontsize=7.5)
    right.set_xlim(0, 1.25 * max(sizes))
    right.set_xlabel("MB, at the peak")
    right.grid(axis="y", visible=False)
    return left
