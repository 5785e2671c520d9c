"""Figures of chapter 16: the ring, a row of scores in pieces, masks shared out, heads for tokens, formulas with points.

The drawings show ideas; what was measured is in `against_formula` and `shares`.
"""

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
                    text = f"dk$_{home}$, dv$_{home}$" if is_last else f"{text},  dk$_{home}$, dv$_{home}$"
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
    with new_figure("key", "score", "One row of scores, read in pieces", source="computed") as (figure, axes):
        begin = 0
        for i, (length, largest, total) in enumerate(steps):
            end = begin + length
            look = {"color": pale(COLOURS[i]), "hatch": HATCHES[i], "edgecolor": "white"}
            axes.bar(range(begin, end), scores[begin:end], **look)
            axes.plot([begin - 0.5, end - 0.5], [largest, largest], color=COLOURS[6], linewidth=1.6)
            text = f"maximum {largest:.2f}\nsum {total:.3f}"
            axes.annotate(text, (end - 0.55, largest), (0, 3), textcoords="offset points", ha="right", fontsize=8)
            begin = end
        axes.axhline(0, color="0.4", linewidth=0.8)
        axes.set_xticks(range(begin))
        axes.margins(y=0.22)
        axes.grid(axis="x", visible=False)
        show(figure, alt)


def masks(orders, alt):
    """Draw {name: positions of every rank} as the table of a causal mask, each query's row in its rank's colour."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, len(orders), figsize=(7.2, 3.5), layout="constrained", squeeze=False)
        for axes, (name, positions) in zip(panels[0], orders.items()):
            num_tokens = sum(map(len, positions))
            for rank, places in enumerate(positions):
                look = {"facecolor": pale(COLOURS[rank]), "hatch": HATCHES[rank], "edgecolor": "white", "linewidth": 0}
                for place in places:
                    axes.add_patch(Rectangle((0, place), place + 1, 1, **look))
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
        figure.legend(handles=handles, title="queries of", loc="outside right center")
        show(figure, alt)


def tokens_for_heads(alt, num_ranks=4):
    """Draw an all-to-all that turns some tokens, with all heads, into some heads, with all tokens."""
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, 2, figsize=(7.2, 2.6), layout="constrained")
        titles = "before: a rank has some tokens, all heads", "after: all tokens, some heads"
        for axes, title, by_tokens in zip(panels, titles, (True, False)):
            for token in range(num_ranks):
                for head in range(num_ranks):
                    holder = token if by_tokens else head
                    look = {"facecolor": pale(COLOURS[holder]), "hatch": HATCHES[holder], "edgecolor": "white"}
                    axes.add_patch(plt.Rectangle((token, head), 1, 1, linewidth=1.5, **look))
                    look = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
                    text = f"{token} → {head}" if by_tokens and token != head else f"rank {holder}"
                    axes.text(token + 0.5, head + 0.5, text, ha="center", va="center", fontsize=7.5, bbox=look)
            axes.set_xlim(0, num_ranks)
            axes.set_ylim(num_ranks, 0)
            axes.set_xlabel("tokens, in quarters")
            axes.set_ylabel("heads")
            axes.set_title(title, fontsize=9)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.grid(visible=False)
        show(figure, alt)


def against_formula(
    measured, formulas, xlabel, ylabel, alt, title="", source="points: counted; lines: the formula", placement=None
):
    """Draw {name: (x, y)} twice: `formulas` as lines, `measured` as points, one colour for each name; y are bytes."""
    names = list(dict.fromkeys([*formulas, *measured]))
    with new_figure(xlabel, ylabel, title, 2.9 + 0.1 * len(names), source, placement) as (figure, axes):
        for i, name in enumerate(names):
            look = {"color": COLOURS[i % 7], "markersize": 5}
            if name in formulas:
                axes.plot(*formulas[name], linestyle=DASHES[i % 7], label=f"{name}, formula", **look)
            if name in measured:
                axes.plot(*measured[name], MARKERS[i % 7], label=f"{name}, counted", **look)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        tick_units(axes, {"y": "bytes"})
        figure.legend(loc="outside upper right", ncols=2)
        show(figure, alt)


def shares(counted, measured, ylabel, alt, title="", prediction=None, source="", placement=None):
    """Draw {order: [a number for each rank]} as bars, counted beside measured, with the mean as a line at 1.

    `measured` may lack an order. `prediction` is {rank: the student's number or None}, for the first order.
    """
    with new_figure("", ylabel, title, 3.0, source, placement) as (figure, axes):
        ticks, names, at, labels = [], [], 0.0, {}
        for order in counted:
            for rank, value in enumerate(counted[order]):
                pair = {"pairs, counted": value}
                if order in measured:
                    pair["seconds of computing, measured"] = measured[order][rank]
                for j, (what, height) in enumerate(pair.items()):
                    look = {"color": COLOURS[(2, 4)[j]], "hatch": HATCHES[j], "edgecolor": "white"}
                    labels.setdefault(what, axes.bar(at + 0.4 * j, height, 0.38, **look))
                    axes.text(at + 0.4 * j, height, f"{height:.2f}", ha="center", va="bottom", fontsize=7)
                ticks.append(at + 0.2)
                names.append(f"rank {rank}" + (f"\n{order}" if rank == 0 else ""))
                at += 1
            at += 0.6
        for what, drawn in labels.items():
            drawn.set_label(what)
        axes.axhline(1, color="0.3", linewidth=1, linestyle="--", label="the mean")
        draw_prediction(axes, {ticks[rank]: number for rank, number in (prediction or {}).items()})
        axes.set_xticks(ticks, names, fontsize=8)
        axes.grid(axis="x", visible=False)
        axes.margins(y=0.12)
        figure.legend(loc="outside upper right", ncols=2)
        show(figure, alt)
