"""Figures of chapter 08: messages between ranks as arrows, a reduction as a tree, and the line α + βb."""

from ...plots.style import COLOURS, STYLE, new_figure, show, tick_units


def hops(ways, alt, shares=None):
    """Draw {name: steps}; a step is a list of (from rank, to rank), all sent at the same time: an idea.

    Time runs to the right, with one scale for all panels. A line is a rank, an arrow a message in its sender's colour.
    `shares` is {name: fraction of the tensor in each message}, 1 if missing; the smaller, the thinner the arrow.
    """
    import matplotlib.pyplot as plt

    most = max(map(len, ways.values()))
    num_ranks = 1 + max(rank for steps in ways.values() for step in steps for pair in step for rank in pair)
    rows = (len(ways) + 1) // 2
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(rows, 2, figsize=(7.4, 0.2 + 1.75 * rows), layout="constrained", squeeze=False)
        for axes in grid.flat[len(ways) :]:
            axes.axis("off")
        for axes, (name, steps) in zip(grid.flat, ways.items()):
            width = 0.7 + 1.6 * (shares or {}).get(name, 1)
            for rank in range(num_ranks):
                axes.plot([0, len(steps)], [rank, rank], color="0.75", linewidth=1, zorder=1)
            for k, step in enumerate(steps):
                for src, dst in step:
                    look = {
                        "arrowstyle": "-|>",
                        "color": COLOURS[src % 7],
                        "linewidth": width,
                        "mutation_scale": 7 + 3 * width,
                    }
                    axes.annotate(
                        "", (k + 0.94, dst), (k + 0.06, src), arrowprops=look | {"shrinkA": 0, "shrinkB": 0}, zorder=3
                    )
            for k in range(len(steps) + 1):
                axes.axvline(k, color="0.88", linewidth=0.8, zorder=0)
            axes.set_title(name)
            axes.set_yticks(range(num_ranks), [f"rank {rank}" for rank in range(num_ranks)], fontsize=8)
            names = [f"step {k + 1}" for k in range(len(steps))]
            axes.set_xticks([k + 0.5 for k in range(len(steps))], names, fontsize=8)
            axes.tick_params(length=0)
            axes.set_ylim(num_ranks - 0.6, -0.4)
            axes.set_xlim(-0.05, most + 0.05)
            axes.grid(visible=False)
            for side in axes.spines.values():
                side.set_visible(False)
        show(figure, alt)


def tree_levels(num_ranks):
    """Return (levels, steps) of a tree reduction to rank 0.

    `levels` are the ranks that hold partial sums before the first step and after each step, the last one [0]. `steps`
    are lists of (from, to). In step k, every second remaining rank sends to the rank 2^k below it.
    """
    levels, steps, distance = [list(range(num_ranks))], [], 1
    while distance < num_ranks:
        steps.append([(rank, rank - distance) for rank in levels[-1] if rank % (2 * distance)])
        levels.append(levels[-1][::2])
        distance *= 2
    return levels, steps


def tree(num_ranks, alt):
    """Draw from the bottom up how a tree sums tensors to rank 0, its root, in ⌈log2(num_ranks)⌉ steps."""
    import matplotlib.pyplot as plt

    levels, steps = tree_levels(num_ranks)
    places = [[float(rank) for rank in levels[0]]]  # a rank stands in the middle of those it has summed
    for above in levels[1:]:
        below = dict(zip(levels[len(places) - 1], places[-1]))
        senders = {dst: src for src, dst in steps[len(places) - 1]}
        places.append([(below[rank] + below[senders.get(rank, rank)]) / 2 for rank in above])
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.4, 0.4 + 0.8 * len(levels)), layout="constrained")
        for height, (ranks, row) in enumerate(zip(levels, places)):
            for rank, x in zip(ranks, row):
                look = {"boxstyle": "circle,pad=0.35", "facecolor": "white", "edgecolor": COLOURS[0], "linewidth": 1.4}
                axes.text(x, height, str(rank), ha="center", va="center", bbox=look, zorder=3, fontsize=9)
            if height:
                above, below = dict(zip(ranks, row)), dict(zip(levels[height - 1], places[height - 1]))
                sends = dict(steps[height - 1])
                for rank, x in below.items():
                    sent = rank in sends
                    look = {
                        "arrowstyle": "-|>" if sent else "-",
                        "color": COLOURS[1] if sent else "0.7",
                        "linewidth": 1.6 if sent else 1,
                    }
                    look |= {"shrinkA": 11, "shrinkB": 11, "linestyle": "-" if sent else ":"}
                    axes.annotate("", (above[sends.get(rank, rank)], height), (x, height - 1), arrowprops=look)
                axes.text(-0.9, height - 0.5, f"step {height}", ha="right", va="center", fontsize=8.5, color="0.3")
        axes.set_xlim(-1.7, num_ranks - 0.4)
        axes.set_ylim(-0.4, len(levels) - 0.6)
        axes.axis("off")
        show(figure, alt)


def fitted(sizes, seconds, alpha, beta, alt, title="", placement=None):
    """Draw the seconds of a message by its bytes: every second size was fitted, the others were withheld."""
    with new_figure("bytes that each rank sends", "time", title, placement=placement) as (figure, axes):
        axes.plot(sizes, [alpha + beta * n for n in sizes], color="0.45", linewidth=1.2, label="α + βb")
        axes.plot(sizes[::2], seconds[::2], "o", color=COLOURS[0], markersize=5.5, label="fitted sizes")
        axes.plot(
            sizes[1::2], seconds[1::2], "s", color=COLOURS[1], markersize=5.5, fillstyle="none", label="withheld sizes"
        )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        tick_units(axes, {"x": "bytes", "y": "seconds"})
        axes.legend()
        show(figure, alt)
