"""Figures of chapter 16: the ring, a row of scores in pieces, masks shared out, heads for tokens, formulas with points.

The drawings show ideas; what was measured is in `against_formula` and `shares`.
"""

import math

from ...plots.style import COLOURS, DASHES, HATCHES, MARKERS, STYLE, draw_prediction, new_figure, pale, show, tick_units


def ring(alt, num_ranks=4, gradients=False):
    """Draw a ring pass: a column is a rank, a row a step, a box the keys and values that visit; colours are homes.

    With `gradients`, the gradients of the visiting keys travel with them, and a last row shows them back at home.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.2, 1.0 + 0.62 * (num_ranks + gradients)), layout="constrained")
        for rank in range(num_ranks):
            _box(axes, rank, 0, COLOURS[rank], f"rank {rank}\nkeeps q$_{rank}$, o$_{rank}$", full=False)
            for step in range(num_ranks + gradients):
                home, is_last = (rank - step) % num_ranks, step == num_ranks
                text = f"k$_{home}$, v$_{home}$" if not is_last else ""
                if gradients and step:
                    text = f"dk$_{home}$, dv$_{home}$\n+ own part" if is_last else f"{text},  dk$_{home}$, dv$_{home}$"
                _box(axes, rank, step + 1, COLOURS[home], text)
                if step < num_ranks - 1 + gradients:
                    _hop(axes, rank, step + 1, num_ranks, COLOURS[home])
        rows = ["", *(f"step {step + 1}" for step in range(num_ranks)), *["at home"] * gradients]
        axes.set_yticks(range(len(rows)), rows)
        axes.set_xlim(-0.75, num_ranks - 0.25)
        axes.set_ylim(len(rows) - 0.55, -0.5)
        _bare(axes)
        show(figure, alt)


def _box(axes, x, y, colour, text, full=True):
    from matplotlib.patches import FancyBboxPatch

    look = {"boxstyle": "round,pad=0.02", "facecolor": pale(colour) if full else "white", "edgecolor": colour}
    axes.add_patch(FancyBboxPatch((x - 0.36, y - 0.24), 0.72, 0.48, linewidth=1.2, zorder=3, **look))
    axes.text(x, y, text, ha="center", va="center", fontsize=7.5, zorder=4)


def _hop(axes, rank, row, num_ranks, colour):
    """An arrow from the box of `rank` in `row` to the next rank's in the row below; the last goes out on the right."""
    look = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9}
    begin = (rank + 0.3, row + 0.27)
    if rank < num_ranks - 1:
        axes.annotate("", (rank + 0.7, row + 0.73), begin, arrowprops=look, zorder=2)
        return
    axes.annotate("", (rank + 0.62, row + 0.62), begin, arrowprops=look | {"arrowstyle": "-"}, zorder=2)
    axes.annotate("", (-0.36, row + 0.78), (-0.68, row + 0.5), arrowprops=look, zorder=2)


def _bare(axes):
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def running_softmax(scores, steps, alt):
    """Draw a row of `scores` in pieces; `steps` is [(scores in the piece, maximum, sum)] after each piece."""
    with new_figure("key", "score", "One row of scores, read in pieces", 3.1, "computed") as (figure, axes):
        begin, keys_at, before = 0, [], None
        for i, (length, largest, total) in enumerate(steps):
            at = [begin + j + 1.4 * i for j in range(length)]
            look = {"color": pale(COLOURS[i]), "hatch": HATCHES[i], "edgecolor": "white"}
            axes.bar(at, scores[begin : begin + length], **look)
            axes.plot([at[0] - 0.5, at[-1] + 0.5], [largest, largest], color=COLOURS[6], linewidth=1.6)
            text = f"maximum {largest:g}\n{_sum_so_far(before, largest, total)}"
            axes.annotate(
                text, ((at[0] + at[-1]) / 2, largest), (0, 4), textcoords="offset points", ha="center", fontsize=7.5
            )
            keys_at += at
            begin, before = begin + length, (largest, total)
        axes.axhline(0, color="0.4", linewidth=0.8)
        axes.set_xticks(keys_at, range(begin))
        axes.margins(y=0.36)
        axes.grid(axis="x", visible=False)
        show(figure, alt)


def _sum_so_far(before, largest, total):
    """The arithmetic of one piece, in words: what the sum was, scaled down if the maximum grew, and what is added."""
    if before is None:
        return f"sum {total:.2f}"
    old, text = before[1], ""
    if largest > before[0]:
        old = before[1] * math.exp(before[0] - largest)
        text = f"{before[1]:.2f} × e^({before[0]:g} − {largest:g}) = {old:.2f}\n"
    return text + f"{old:.2f} + {total - old:.2f} = {total:.2f}"


def masks(orders, alt):
    """Draw {name: positions of every rank} as the table of a causal mask, each query's row in its rank's colour."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, len(orders), figsize=(7.6, 3.3), layout="constrained", squeeze=False)
        for axes, (name, positions) in zip(panels[0], orders.items()):
            num_tokens = sum(map(len, positions))
            for rank, places in enumerate(positions):
                look = {"facecolor": pale(COLOURS[rank]), "hatch": HATCHES[rank], "edgecolor": "white", "linewidth": 0}
                for place in places:
                    axes.add_patch(Rectangle((0, place), place + 1, 1, **look))
                late = places[len(places) // 2 :]  # zigzag: the rank's second chunk
                text = f"rank {rank}: {int((places + 1).sum())} pairs"
                at = (num_tokens + 0.5, float(late.double().mean()) + 0.5)
                axes.annotate(text, at, va="center", fontsize=7.5, annotation_clip=False)
            axes.set_xlim(0, num_tokens)
            axes.set_ylim(num_tokens, 0)
            axes.set_aspect("equal")
            axes.set_xlabel("key")
            axes.set_ylabel("query")
            axes.set_title(name)
            axes.grid(visible=False)
        handles = [
            Patch(facecolor=pale(COLOURS[rank]), hatch=HATCHES[rank], edgecolor="white", label=f"rank {rank}")
            for rank in range(len(positions))
        ]
        figure.legend(handles=handles, title="queries of", loc="outside lower center", ncols=len(handles))
        show(figure, alt)


def tokens_for_heads(alt, num_ranks=4):
    """Draw an all-to-all that turns some tokens, with all heads, into some heads, with all tokens.

    Each part says where it is sent to, and then where it came from.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, 2, figsize=(7.2, 2.9), layout="constrained")
        titles = "before: a rank has some tokens, all heads", "after: all tokens, some heads"
        for axes, title, by_tokens in zip(panels, titles, (True, False)):
            for token in range(num_ranks):
                for head in range(num_ranks):
                    holder = token if by_tokens else head
                    look = {"facecolor": pale(COLOURS[holder]), "hatch": HATCHES[holder], "edgecolor": "white"}
                    axes.add_patch(plt.Rectangle((token, head), 1, 1, linewidth=1.5, **look))
                    look = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
                    text = "stays" if token == head else f"to {head}" if by_tokens else f"from {token}"
                    axes.text(token + 0.5, head + 0.5, text, ha="center", va="center", fontsize=7.5, bbox=look)
            ranks = [f"\non rank {rank}" for rank in range(num_ranks)]
            middles, nothing = [rank + 0.5 for rank in range(num_ranks)], [""] * num_ranks
            quarters = [f"quarter {i}{rank}" for i, rank in enumerate(ranks if by_tokens else nothing)]
            heads = [f"head {i}{rank}" for i, rank in enumerate(nothing if by_tokens else ranks)]
            axes.set_xlim(0, num_ranks)
            axes.set_ylim(num_ranks, 0)
            axes.set_xticks(middles, quarters, fontsize=7.5)
            axes.set_yticks(middles, heads, fontsize=7.5)
            axes.set_title(title, fontsize=9)
            axes.tick_params(length=0)
            axes.grid(visible=False)
        show(figure, alt)


def against_formula(
    panels, xlabel, ylabel, alt, title="", source="points: counted; lines: the formula", placement=None, mark=None
):
    """Draw {panel's title: ({name: (x, y)} counted, {name: (x, y)} by a formula)}: points on lines; y are bytes.

    A name has one colour. Points without a formula are joined by thin lines. `mark` is (x, text) of a vertical line.
    """
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys(name for pair in panels.values() for part in reversed(pair) for name in part))
    with new_figure("", "", title, 2.9, source, placement) as (figure, axes):
        axes.remove()
        drawn = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (subtitle, (measured, formulas)) in zip(drawn, panels.items()):
            for i, name in enumerate(names):
                look = {"color": COLOURS[i % 7], "markersize": 5}
                if name in formulas:
                    axes.plot(*formulas[name], linestyle=DASHES[i % 7], **look)
                if name in measured:
                    thin = {} if name in formulas else {"linestyle": DASHES[i % 7], "linewidth": 0.7}
                    axes.plot(*measured[name], **look | {"marker": MARKERS[i % 7], "linestyle": "None"} | thin)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
            tick_units(axes, {"y": "bytes"})
            axes.set_xlabel(xlabel)
            axes.set_title(subtitle, fontsize=9)
            if mark:
                axes.axvline(mark[0], color="0.4", linestyle=":", linewidth=1)
                look = {"textcoords": "offset points", "fontsize": 7.5, "va": "bottom"}
                axes.annotate(mark[1], (mark[0], axes.get_ylim()[0]), (3, 3), **look)
        drawn[0].set_ylabel(ylabel)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        figure.set_size_inches(7.6, 2.9)
        handles = [
            Line2D(
                [], [], color=COLOURS[i % 7], linestyle=DASHES[i % 7], marker=MARKERS[i % 7], markersize=5, label=name
            )
            for i, name in enumerate(names)
        ]
        figure.legend(handles=handles, loc="outside right center")
        show(figure, alt)


def shares(orders, ylabel, alt, title="", prediction=None, source="", placement=None):
    """Draw {order: {what: [a number for each rank]}} as bars, side by side, with the mean as a line at 1.

    `prediction` is {rank: the student's number or None}, for the first order.
    """
    with new_figure("", ylabel, title, 3.3, source, placement) as (figure, axes):
        ticks, names, at = [], [], 0.0
        kinds = list(dict.fromkeys(what for bars in orders.values() for what in bars))
        axes.axhline(1, color="0.3", linewidth=1, linestyle="--", label="the mean", zorder=1)
        for order, bars in orders.items():
            num_ranks, width = len(next(iter(bars.values()))), 0.84 / len(bars)
            for i, (what, heights) in enumerate(bars.items()):
                kind = kinds.index(what)
                xs = [at + rank + (i - (len(bars) - 1) / 2) * width for rank in range(num_ranks)]
                look = {"color": COLOURS[(2, 5, 4)[kind]], "hatch": HATCHES[kind], "edgecolor": "white", "zorder": 2}
                axes.bar(xs, heights, 0.95 * width, label=what if order == next(iter(orders)) else None, **look)
                for x, height in zip(xs, heights):
                    box = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}
                    axes.annotate(
                        f"{height:.2f}", (x, height), (0, 3), textcoords="offset points", ha="center", fontsize=7,
                        bbox=box, zorder=3, rotation=90,
                    )  # fmt: skip
            ticks += [at + rank for rank in range(num_ranks)]
            names += [f"rank {rank}" for rank in range(num_ranks)]
            axes.annotate(
                order, (at + (num_ranks - 1) / 2, 0), (0, -22), textcoords="offset points", ha="center", va="top",
                annotation_clip=False, fontsize=9, fontweight="bold",
            )  # fmt: skip
            at += num_ranks + 0.6
        draw_prediction(axes, {ticks[rank]: number for rank, number in (prediction or {}).items()})
        axes.set_xticks(ticks, names, fontsize=8)
        axes.grid(axis="x", visible=False)
        axes.margins(y=0.2)
        figure.legend(loc="outside upper right", ncols=2)
        show(figure, alt)


def learning(losses, level, xlabel, ylabel, alt, title="", source="", mean_of=20, first=20):
    """Draw {name: loss of each step} from step `first` on, each the mean of the last `mean_of`, beside (name, loss)."""
    with new_figure(xlabel, ylabel, title, 3.1, source) as (figure, axes):
        for i, (name, values) in enumerate(losses.items()):
            steps = range(first, len(values) + 1)
            means = [sum(values[step - mean_of : step]) / mean_of for step in steps]
            look = {"color": COLOURS[i % 7], "linestyle": DASHES[i % 7], "marker": MARKERS[i % 7], "markersize": 4}
            axes.plot(steps, means, label=name, markevery=(15 * i, 60), **look)
        axes.axhline(level[1], color="0.3", linestyle=":", linewidth=1.2, label=level[0])
        axes.legend()
        show(figure, alt)
