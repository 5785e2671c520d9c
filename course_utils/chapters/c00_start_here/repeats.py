"""Every repeat of a measurement as a point, so that the spread is seen and nothing has to be summed up beforehand."""

import statistics

from ...plots.style import COLOURS, MARKERS, draw_prediction, new_figure, show, tick_units


def repeats(values, xlabel, alt, title="", unit="seconds", prediction=None, source=""):
    """Draw {name: its repeats}, a row each from the top down: a point a repeat, a bar at the median. The axis is to the
    base 10.

    `unit` is "seconds" or "bytes", for ticks such as 10 ms; `prediction` is {name: value} as in `lines`. `source` names
    where the values are from, if not from this machine.
    """
    from matplotlib.ticker import LogLocator

    with new_figure(xlabel, "", title, height=1.1 + 0.36 * len(values), source=source) as (figure, axes):
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
