"""Figures of experts: which token visits which expert, how many find room, and the way to other ranks and back."""

import statistics

from ...plots.passes import draw_arrow
from ...plots.style import COLOURS, DASHES, MARKERS, STYLE, draw_prediction, new_figure, pale, show

_GREY = {"color": "0.35"}


def layer(choices, alt, num_experts=3):
    """Draw tokens through an MLP, which all of them use, and through experts, of which token i visits `choices[i]`."""
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.0, 3.0), layout="constrained")
        for axes, title in ((left, "an MLP: every token uses every weight"), (right, "experts: a token uses one")):
            axes.set_title(title, fontsize=9)
            axes.set_xlim(-0.9, 6.9)
            axes.set_ylim(len(choices) - 0.3, -1.0)
            axes.axis("off")
            for x, name in ((0, "tokens"), (6, "outputs")):
                axes.text(x, -0.75, name, ha="center", fontsize=8, color="0.35")
            for token, expert in enumerate(choices):
                _draw_token(axes, 0, token, None, f"t{token}")  # which expert it visits, the router has yet to say
                _draw_token(axes, 6, token, expert if axes is right else None, f"t{token}")
        middle = (len(choices) - 1) / 2
        _draw_box(left, 3, middle, 1.5, len(choices) - 0.4, "all\nweights")
        for token in range(len(choices)):
            draw_arrow(left, (0.4, token), (2.15, token), _GREY)
            draw_arrow(left, (3.85, token), (5.6, token), _GREY)
        rows = [len(choices) * (i + 0.5) / num_experts - 0.5 for i in range(num_experts)]
        for expert, y in enumerate(rows):
            _draw_box(right, 3.5, y, 1.3, 1.3, f"expert {expert}", pale(COLOURS[expert]), 8)
        _draw_box(right, 1.35, middle, 0.5, len(choices) - 0.4, "")
        right.text(1.35, middle, "router", rotation=90, ha="center", va="center", fontsize=8.5)
        for token, expert in enumerate(choices):
            draw_arrow(right, (0.4, token), (1.08, token), _GREY)
            draw_arrow(right, (1.62, token), (2.83, rows[expert]), {"color": COLOURS[expert]})
            draw_arrow(right, (4.18, rows[expert]), (5.6, token), {"color": COLOURS[expert]})
        right.text(4.85, -0.75, "× gate", ha="center", fontsize=8, color="0.35")
        show(figure, alt)


def slots(choices, capacity, alt, num_experts=3):
    """Draw the experts' slots, `capacity` each, filled in the order of the tokens; who finds none is dropped."""
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.4, 1.1 + 0.55 * num_experts), layout="constrained")
        filled = seats(choices, capacity, num_experts)
        widest = max(capacity + len(dropped) for _, dropped in filled)
        for y, (kept, dropped) in enumerate(filled):
            axes.text(-0.8, y, f"expert {y}", ha="right", va="center", fontsize=8.5)
            for place in range(capacity):
                _draw_box(axes, place, y, 0.9, 0.8, "", "white")
                if place < len(kept):
                    _draw_token(axes, place, y, y, f"t{kept[place]}", wide=0.9)
                else:
                    axes.text(place, y, "empty", ha="center", va="center", fontsize=7, color="0.5")
            for i, token in enumerate(dropped):
                _draw_box(axes, capacity + 0.6 + i, y, 0.9, 0.78, "", hatch="////")
                look = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
                axes.text(capacity + 0.6 + i, y, f"t{token}", ha="center", va="center", fontsize=7.5, bbox=look)
        size = f"{capacity} slots each"
        if capacity == -(-len(choices) // num_experts):
            size = f"c = 1: ⌈{len(choices)}/{num_experts}⌉ = {size}"
        axes.text((capacity - 1) / 2, -0.75, size, ha="center", fontsize=8, color="0.35")
        if widest > capacity:
            axes.text(capacity + 0.6, -0.75, "dropped", ha="center", fontsize=8, color="0.35")
        axes.set_xlim(-2.2, widest + 0.6)
        axes.set_ylim(num_experts - 0.4, -1.05)
        axes.axis("off")
        show(figure, alt)


def seats(choices, capacity, num_experts):
    """Return, for each expert, (the tokens that find a slot, those that do not), in the order of tokens."""
    comers = [[token for token, choice in enumerate(choices) if choice == expert] for expert in range(num_experts)]
    return [(each[:capacity], each[capacity:]) for each in comers]


def journey(choices, alt, num_experts=4):
    """Draw the way of each rank's tokens: sorted by expert, sent, the experts' rows, and the results sent back.

    `choices` lists each rank's tokens by the expert that they visit; the experts are divided evenly over the ranks.
    """
    import matplotlib.pyplot as plt

    columns = _columns(choices, num_experts)
    names = ("tokens", "sorted by expert", "rows at the experts,\nsorted again", "results back", "in token order")
    xs = (0, 2.6, 6.0, 9.4, 12.0)
    longest = max(len(rows) for column in columns for rows in column)
    tops = [rank * (longest + 0.7) for rank in range(len(choices))]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.2, 1.2 + 0.33 * (tops[-1] + longest)), layout="constrained")
        for top in tops:
            axes.axhspan(top - 0.6, top + longest - 0.25, color="0.95", zorder=0)  # what is on one rank
        places = []
        for x, name, column in zip(xs, names, columns):
            axes.text(x, -1.0, name, ha="center", va="bottom", fontsize=8, color="0.35")
            places.append({})
            for top, rows in zip(tops, column):
                for i, (rank, token, expert) in enumerate(rows):
                    places[-1][rank, token] = x, top + i
                    _draw_token(axes, x, top + i, expert, f"{'abcdefgh'[rank]}{token}", wide=0.62)
        for before, after in zip(places, places[1:]):
            for token, begin in before.items():
                (x0, y0), (x1, y1) = begin, after[token]
                draw_arrow(axes, (x0 + 0.42, y0), (x1 - 0.42, y1), {"color": "0.55"}, linewidth=0.8)
        for rank, top in enumerate(tops):
            axes.text(-0.9, top + (longest - 1) / 2, f"rank {rank}", ha="right", va="center", fontsize=8.5)
            each = num_experts // len(choices)
            _name_groups(axes, xs[2], top, columns[2][rank], range(rank * each, rank * each + each))
        words = {"ha": "center", "va": "top", "fontsize": 8.5, "style": "italic"}
        for x, text in ((4.3, "all-to-all: dispatch"), (7.7, "all-to-all: combine")):
            axes.text(x, tops[-1] + longest - 0.1, text, **words)
        axes.text(6.0, tops[-1] + longest + 0.75, "backward: the same way, from right to left", **words)
        axes.set_xlim(-2.4, 12.8)
        axes.set_ylim(tops[-1] + longest + 1.5, -1.7)
        axes.axis("off")
        show(figure, alt)


def _columns(choices, num_experts):
    """The five columns of `journey`, each with the rows (rank, token, expert) of every rank."""
    each = num_experts // len(choices)
    tokens = [[(rank, token, expert) for token, expert in enumerate(own)] for rank, own in enumerate(choices)]
    ordered = [sorted(rows, key=lambda row: row[2]) for rows in tokens]
    everything = sorted((row for rows in tokens for row in rows), key=lambda row: (row[2], row[0], row[1]))
    arrived = [[row for row in everything if row[2] // each == rank] for rank in range(len(choices))]
    return tokens, ordered, arrived, ordered, tokens


def _name_groups(axes, x, top, rows, experts):
    """Frame the rows of each of a rank's experts, and name the expert; one without rows is named below."""
    at, look = top, {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    for expert in experts:
        number = sum(row[2] == expert for row in rows)
        if number:
            _draw_box(axes, x, at + (number - 1) / 2, 1.0, number - 0.06, "", "none")
            axes.text(x + 0.6, at + (number - 1) / 2, f"E{expert}", ha="left", va="center", fontsize=7.5, bbox=look)
        at += number
    empty = [expert for expert in experts if not any(row[2] == expert for row in rows)]
    if empty:
        names = ", ".join(f"E{expert}" for expert in empty)
        axes.text(x, at - 0.1, f"{names}: no rows", ha="center", va="center", fontsize=7.5)


def mesh(alt):
    """Draw four ranks in two rows, which share experts out, and two columns, which hold the same ones."""
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 3.1), layout="constrained")
        for rank in range(4):
            row, column = divmod(rank, 2)
            x, y = 4.2 * column, 2.3 * row
            _draw_box(axes, x, y, 2.6, 1.5, "", "white")
            axes.text(x, y - 0.5, f"rank {rank}", ha="center", va="center", fontsize=8.5)
            axes.text(x, y - 0.1, "router and dense layers", ha="center", va="center", fontsize=7.5, color="0.35")
            for i in range(2):
                expert = 2 * column + i
                colour = pale(COLOURS[expert])
                _draw_box(axes, x - 0.62 + 1.24 * i, y + 0.4, 1.12, 0.5, f"expert {expert}", colour, 7)
        heads, words = "<->", {"ha": "center", "va": "center", "fontsize": 8}
        for row in range(2):
            draw_arrow(axes, (1.35, 2.3 * row), (2.85, 2.3 * row), {"color": COLOURS[0]}, heads=heads)
            axes.text(2.1, 2.3 * row - 0.22, "all-to-all", **words, color=COLOURS[0])
            axes.text(2.1, 2.3 * row + 0.24, "tokens", **words, color=COLOURS[0])
        for column in range(2):
            look = {"color": COLOURS[1], "linestyle": "--"}
            draw_arrow(axes, (4.2 * column, 0.78), (4.2 * column, 1.52), look, heads=heads)
            axes.text(4.2 * column + 0.1, 1.15, "experts' gradients", ha="left", va="center", fontsize=8,
                      color=COLOURS[1])  # fmt: skip
        axes.text(2.1, -1.0, "mesh axis: experts", **words, style="italic")
        axes.text(-1.75, 1.15, "mesh axis: copies", **words, style="italic", rotation=90)
        axes.text(2.1, 3.4, "gradients of router and dense layers: over all four ranks", **words)
        axes.set_xlim(-2.0, 6.4)
        axes.set_ylim(3.65, -1.25)
        axes.axis("off")
        show(figure, alt)


def _draw_token(axes, x, y, expert, text, wide=0.7):
    """Draw a token: its name, and the colour and marker of the expert that it visits; grey without one."""
    colour = "0.88" if expert is None else pale(COLOURS[expert])
    _draw_box(axes, x, y, wide, 0.78, "", colour)
    if expert is not None:
        axes.plot(x - wide / 2 + 0.14, y, MARKERS[expert], color=COLOURS[expert], markersize=4, markeredgewidth=0)
    axes.text(x + (0 if expert is None else 0.09), y, text, ha="center", va="center", fontsize=7.5)


def _draw_box(axes, x, y, wide, high, text, colour="white", size=8.5, hatch=None):
    from matplotlib.patches import Rectangle

    look = {"facecolor": colour, "edgecolor": "0.4", "linewidth": 0.9, "fill": colour != "none", "hatch": hatch}
    axes.add_patch(Rectangle((x - wide / 2, y - high / 2), wide, high, **look))
    axes.text(x, y, text, ha="center", va="center", fontsize=size)


def bands(found, xlabel, ylabel, alt, title="", levels=None, prediction=None, source="", placement=None, apart=False):
    """Draw {name: (x values, rows)}, a row for each seed: the median as a line, lowest to highest as a band.

    If `apart`, each seed is a thin line of its own instead. `levels` are {name: value} of at most two horizontal lines;
    `prediction` is the student's {x: y}, with y None if there is none. `source` and `placement` are those of
    `plots.lines`.
    """
    with new_figure(xlabel, ylabel, title, 3.2, source, placement) as (figure, axes):
        for i, (name, (xs, rows)) in enumerate(found.items()):
            low, middle, high = of_seeds(rows)
            if apart:
                axes.plot(xs, list(zip(*rows)), color=COLOURS[i], linestyle=DASHES[i], linewidth=0.6, alpha=0.5)
            else:
                axes.fill_between(xs, low, high, color=COLOURS[i], alpha=0.18, linewidth=0)
            look = {"color": COLOURS[i], "marker": MARKERS[i], "linestyle": DASHES[i], "markersize": 4}
            axes.plot(xs, middle, label=name, **look)
        for (name, value), style in zip((levels or {}).items(), (":", "-")):
            axes.axhline(value, color="0.3", linewidth=1, linestyle=style, label=name)
        if axes.dataLim.y0 >= 0:
            axes.set_ylim(bottom=0)
        draw_prediction(axes, prediction)
        figure.legend(loc="outside upper right", ncols=4)
        show(figure, alt)


def of_seeds(rows):
    """Return (the lowest, the median, the highest) value at each place, of a row for each seed."""
    columns = [sorted(column) for column in zip(*rows)]
    return tuple([pick(column) for column in columns] for pick in (min, statistics.median, max))
