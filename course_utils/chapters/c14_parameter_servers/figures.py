"""Parameter servers: what is pulled and pushed, who waits for whom, and how old gradients are."""

import bisect
import statistics

from ...plots.charts import lines
from ...plots.style import (
    COLOURS,
    HATCHES,
    STYLE,
    keys,
    new_figure,
    pale,
    show,
)

_PULL, _PUSH = {"color": COLOURS[0], "linestyle": "-"}, {"color": COLOURS[1], "linestyle": "--"}
_KEYS = (2, 2, 3, 4)  # palette indices; keys 0 and 1 are on server 0


def push_and_pull(alt, num_workers=3):
    """Draw two servers with two keys each, above workers with copies of all four keys, numbered by rank.

    This is a sketch, not a measurement.
    """
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 3.1), layout="constrained")
        places = [1.6 + 4.0 * i for i in range(num_workers)]
        servers = [places[0] + (places[-1] - places[0]) * (0.25 + 0.5 * i) for i in range(2)]
        for i, x in enumerate(servers):
            _process(axes, x, 0, f"server, rank {i}: values, optimizer", range(2 * i, 2 * i + 2))
        for i, x in enumerate(places):
            _process(axes, x, 3.4, f"worker, rank {i + 2}: its images", range(4))
            for j, server in enumerate(servers):
                for look, shift, heads in ((_PULL, -0.17, "->"), (_PUSH, 0.17, "<-")):
                    ends = (server + 0.35 * (i - 1) + shift, 0.62), (x + 0.7 * (j - 0.5) + shift, 2.62)
                    axes.annotate("", ends[1], ends[0], arrowprops={"arrowstyle": heads, "linewidth": 1.2, **look})
        lines = [Line2D([], [], label="pull: parameters", **_PULL), Line2D([], [], label="push: gradients", **_PUSH)]
        figure.legend(handles=lines, loc="outside lower center", ncols=2)
        axes.set_xlim(places[0] - 1.7, places[-1] + 1.7)
        axes.set_ylim(4.4, -0.95)
        axes.axis("off")
        show(figure, alt)


def _process(axes, x, y, title, held):
    from matplotlib.patches import FancyBboxPatch, Rectangle

    look = {"boxstyle": "round,pad=0,rounding_size=0.12", "facecolor": "white", "edgecolor": "0.4", "linewidth": 1.1}
    axes.add_patch(FancyBboxPatch((x - 1.4, y - 0.55), 2.8, 1.1, **look))
    axes.text(x, y - 0.62 if y == 0 else y + 0.62, title, ha="center", va="bottom" if y == 0 else "top", fontsize=8)
    for i, key in enumerate(held):
        left = x + 0.62 * (i - len(held) / 2)
        hatch = HATCHES[2] if key % 2 else ""
        axes.add_patch(
            Rectangle(
                (left + 0.03, y - 0.28),
                0.56,
                0.56,
                facecolor=pale(COLOURS[_KEYS[key]]),
                hatch=hatch,
                edgecolor="0.4",
                lw=0.8,
            )
        )


def who_waits(charts, until, alt):
    """Draw {title: [(worker, step, begin, end)]} below one another up to time `until`: a box per step.

    White means that a worker waits. Steps and workers are numbered from 0 here and from 1 in the figure, where rank 0
    is the server.
    """
    with new_figure(
        "",
        "",
        "",
        height=1.0 + 0.3 * len(charts) + 0.2 * sum(1 + max(s[0] for s in c) for c in charts.values()),
        source="white: waiting; computed from the rules, not measured",
    ) as (figure, axes):
        axes.remove()
        panels = figure.subplots(len(charts), sharex=True, squeeze=False)[:, 0]
        for axes, (title, steps) in zip(panels, charts.items()):
            workers = 1 + max(worker for worker, *_ in steps)
            for worker, step, begin, end in steps:
                slow = worker == workers - 1
                axes.barh(
                    worker,
                    end - begin,
                    0.8,
                    begin,
                    color=pale(COLOURS[1 if slow else 0]),
                    hatch=HATCHES[slow],
                    edgecolor="white",
                )
                axes.text((begin + min(end, until)) / 2, worker, str(step + 1), ha="center", va="center", fontsize=6.5)
            axes.set_yticks(range(workers), [f"worker {worker + 1}" for worker in range(workers)], fontsize=7)
            axes.set_ylim(workers - 0.5, -0.5)
            axes.set_title(title, fontsize=9)
            axes.grid(visible=False)
        panels[-1].set_xlim(0, until)
        panels[-1].set_xlabel("time, in steps of a fast worker")
        show(figure, alt)


def staleness(charts, alt, title="", *, placement):
    """Draw {name: (staleness of fast workers' gradients, of the slow one's)}, two lists, in per cent, side by side."""
    highest = max(max(fast + slow) for fast, slow in charts.values())
    with new_figure("", "", title, height=2.7, placement=placement) as (figure, axes):
        axes.remove()
        panels = figure.subplots(1, len(charts), sharex=True, sharey=True, squeeze=False)[0]
        for axes, (name, parts) in zip(panels, charts.items()):
            for i, part in enumerate(parts):
                shares = [100 * part.count(n) / len(part) for n in range(highest + 1)]
                places = [n + 0.45 * (i - 0.5) for n in range(highest + 1)]
                axes.bar(places, shares, 0.45, color=COLOURS[i], hatch=HATCHES[i], edgecolor="white", linewidth=0.3)
            axes.set_title(name, fontsize=9)
            axes.set_xlabel("updates missed")
            axes.grid(axis="x", visible=False)
        panels[0].set_ylabel("share of their gradients (%)")
        figure.legend(handles=keys(["fast workers", "slow worker"]), loc="outside upper right", ncols=2)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        show(figure, alt)


def medians(runs, places, xlabel, ylabel, alt, title="", *, placement, **settings):
    """Draw {name: [points (x, y) of each run, in order of x]}: median and range over runs at each of `places`.

    A run's value at a place is that of its last point up to it. A line ends with its shortest run. `settings` are those
    of `lines`.
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
    lines(series, xlabel, ylabel, alt, title, placement=placement, **settings)


def _value_at(points, x):
    """Return the y of the last of `points`, (x, y) in order of x, up to `x`."""
    return points[bisect.bisect_right(points, x, key=lambda point: point[0]) - 1][1]
