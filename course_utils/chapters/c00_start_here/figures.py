"""Figures of chapter 00: machines with their processes and devices, and repeated measurements."""

import statistics

from ...plots.style import COLOURS, MARKERS, STYLE, draw_prediction, new_figure, pale, show, tick_units

# a device's side; the padding inside a frame; the gap between neighbours
_DEVICE, _PAD, _GAP = 1.0, 0.24, 0.7
_TITLE = 1.15  # space above a panel


def setups(panels, alt):
    """Draw {title: machines} side by side.

    A machine is a list of its processes, a process its number of devices. Arrows join the processes of a machine, and
    the machines: they share data only by messages.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    widths = [
        _width([_width(processes) + 2 * _PAD for processes in map(_processes, machines)])
        for machines in panels.values()
    ]
    wide, high = sum(widths) + 1.1 * (len(panels) - 1), _DEVICE + 4 * _PAD
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 0.75 + (high + _TITLE) * 6.7 / wide), layout="constrained")
        x = 0
        for (title, machines), width in zip(panels.items(), widths):
            axes.text(x, high + 0.2, title, fontsize=8, ha="left", va="bottom", linespacing=1.3)
            _draw_machines(axes, machines, x)
            x += width + 1.1
        keys = [
            Patch(facecolor=pale(COLOURS[5]), edgecolor=COLOURS[0], label="device"),
            Patch(facecolor="white", edgecolor=COLOURS[2], label="process"),
            Patch(facecolor="0.93", edgecolor="0.5", linestyle="--", label="machine"),
        ]
        figure.legend(handles=keys, loc="outside lower left", ncols=3)
        axes.set_xlim(-0.1, wide + 0.1)
        axes.set_ylim(-0.1, high + _TITLE)
        axes.set_aspect("equal")
        axes.axis("off")
        show(figure, alt)


def _processes(machine):
    """Return the width of each process on a machine, from its number of devices."""
    return [count * _DEVICE + (count - 1) * _PAD + 2 * _PAD for count in machine]


def _width(items):
    return sum(items) + _GAP * (len(items) - 1)


def _draw_machines(axes, machines, x):
    middle = _DEVICE / 2 + 2 * _PAD
    for i, machine in enumerate(machines):
        widths = _processes(machine)
        if i:
            _arrow(axes, x - _GAP, x, middle)
        _frame(
            axes, x, 0, _width(widths) + 2 * _PAD, _DEVICE + 4 * _PAD, facecolor="0.93", edgecolor="0.5", linestyle="--"
        )
        x += _PAD
        for j, (count, width) in enumerate(zip(machine, widths)):
            if j:
                _arrow(axes, x - _GAP, x, middle)
            _frame(axes, x, _PAD, width, _DEVICE + 2 * _PAD, facecolor="white", edgecolor=COLOURS[2])
            for k in range(count):
                left = x + _PAD + k * (_DEVICE + _PAD)
                _frame(axes, left, 2 * _PAD, _DEVICE, _DEVICE, facecolor=pale(COLOURS[5]), edgecolor=COLOURS[0])
            x += width + _GAP
        x += _PAD


def _frame(axes, x, y, width, height, **look):
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.12", linewidth=1.1, **look)
    )


def _arrow(axes, left, right, y):
    look = {"arrowstyle": "<->", "color": COLOURS[1], "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 7}
    axes.annotate("", (right, y), (left, y), arrowprops=look, zorder=4)


def repeats(values, xlabel, alt, title="", unit="seconds", prediction=None, source="", placement=None):
    """Draw one row per name of {name: repeats}, from the top down, on a log10 axis.

    A point is one repeat, a bar the median. `unit` is "seconds" or "bytes", for ticks such as 10 ms. `prediction` is
    {name: value} as in `lines`. `source` and `placement` are those of `lines`.
    """
    from matplotlib.ticker import LogLocator

    with new_figure(xlabel, "", title, height=1.1 + 0.36 * len(values), source=source, placement=placement) as (
        figure,
        axes,
    ):
        names = list(values)
        for y, several in enumerate(values.values()):
            look = {
                "marker": MARKERS[0],
                "markersize": 5,
                "markeredgewidth": 0,
                "color": COLOURS[0],
                "alpha": 0.45,
                "linestyle": "",
            }
            axes.plot(several, [y] * len(several), label="one repeat" if not y else None, **look)
            middle = statistics.median(several)
            axes.plot(
                [middle] * 2, [y - 0.3, y + 0.3], color=COLOURS[1], linewidth=2, label="median" if not y else None
            )
        draw_prediction(
            axes, {value: names.index(name) if value else None for name, value in (prediction or {}).items()}
        )
        axes.margins(x=0.08)
        axes.set_xscale("log")
        left, right = axes.get_xlim()
        steps = (1, 2, 5) if right < 30 * left else (1, 3) if right < 1000 * left else (1,)
        axes.xaxis.set_major_locator(LogLocator(subs=steps))
        tick_units(axes, {"x": unit})
        axes.xaxis.set_minor_formatter("")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
        show(figure, alt)
