"""Parameter servers: what is pulled and pushed, who waits for whom, and how old gradients are."""

import statistics

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
_AS_THE_FIRST = {"color": "0.75", "linestyle": "-"}
_KEYS = (2, 2, 3, 4)  # palette indices; keys 0 and 1 are on server 0


def push_and_pull(alt, num_workers=3):
    """Draw two servers with two keys each, above workers with copies of all four keys, numbered by rank.

    Pull and push are drawn for the first worker; a grey line stands for those of each other one. This is a sketch, not
    a measurement.
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
                arrows = ((_PULL, -0.17, "->"), (_PUSH, 0.17, "<-")) if i == 0 else ((_AS_THE_FIRST, 0, "-"),)
                for look, shift, heads in arrows:
                    ends = (server + 0.35 * (i - 1) + shift, 0.62), (x + 0.7 * (j - 0.5) + shift, 2.62)
                    axes.annotate("", ends[1], ends[0], arrowprops={"arrowstyle": heads, "linewidth": 1.2, **look})
        labels = {"pull: parameters": _PULL, "push: gradients": _PUSH, "both, as for rank 2": _AS_THE_FIRST}
        lines = [Line2D([], [], label=label, **look) for label, look in labels.items()]
        figure.legend(handles=lines, loc="outside lower center", ncols=3)
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

    White means that a worker waits, and the title counts the steps that have ended by `until`. Steps and workers are
    numbered from 0 here and from 1 in the figure, where rank 0 is the server.
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
            axes.set_title(f"{title}: {sum(end <= until for *_, end in steps)} steps", fontsize=9)
            axes.grid(visible=False)
        panels[-1].set_xlim(0, until)
        panels[-1].set_xlabel("time, in steps of a fast worker")
        show(figure, alt)


def staleness(charts, alt, title="", *, placement):
    """Draw {name: (staleness of fast workers' gradients, of the slow one's)}, two lists, in per cent, side by side.

    A dotted line marks the mean of all gradients of a name.
    """
    highest = max(max(fast + slow) for fast, slow in charts.values())
    with new_figure("", "", title, height=2.7, placement=placement) as (figure, axes):
        axes.remove()
        panels = figure.subplots(1, len(charts), sharex=True, sharey=True, squeeze=False)[0]
        for axes, (name, parts) in zip(panels, charts.items()):
            for i, part in enumerate(parts):
                shares = [100 * part.count(n) / len(part) for n in range(highest + 1)]
                places = [n + 0.45 * (i - 0.5) for n in range(highest + 1)]
                axes.bar(places, shares, 0.45, color=COLOURS[i], hatch=HATCHES[i], edgecolor="white", linewidth=0.3)
            mean = statistics.mean(sum(parts, []))
            axes.axvline(mean, color="black", linestyle=":", linewidth=1.2)
            axes.set_title(f"{name}\nmean of all {mean:.1f}", fontsize=9)
            axes.set_xlabel("updates missed")
            axes.grid(axis="x", visible=False)
        panels[0].set_ylabel("share of their gradients (%)")
        figure.legend(handles=keys(["fast workers", "slow worker"]), loc="outside upper right", ncols=2)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        show(figure, alt)


def tuned(panels, alt, title="", *, source):
    """Draw {panel: {way: losses of the seeds}} side by side: a dot for each seed, a bar at the median."""
    ways = list(dict.fromkeys(way for panel in panels.values() for way in panel))
    with new_figure("", "", title, height=1.3 + 0.24 * len(ways), source=source) as (figure, axes):
        axes.remove()
        drawn = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
        for axes, (panel, losses) in zip(drawn, panels.items()):
            for way, found in losses.items():
                place = ways.index(way)
                axes.plot(found, [place] * len(found), "o", color=COLOURS[0], alpha=0.5, markersize=4)
                axes.plot([statistics.median(found)], [place], "|", color="black", markersize=14, markeredgewidth=2)
            axes.set_title(panel, fontsize=9)
            axes.set_xlabel("test loss")
            axes.set_xlim(left=0)
        drawn[0].set_yticks(range(len(ways)), ways, fontsize=8)
        drawn[0].set_ylim(len(ways) - 0.5, -0.5)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        show(figure, alt)
