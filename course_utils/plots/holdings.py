"""What ranks hold before and after messages: a box is a number, its symbols are the ranks that contributed.

The digits of a number encode its contributors: the last digit is for rank 0, the one before for rank 1, and so on.
Digit 0 means no contribution; any other digit is the number of the piece that the rank contributed. So 3003 is the sum
of the third pieces of ranks 3 and 0. This works for up to ten ranks with nine pieces each, if no rank is added twice.
"""

import math

from .. import notebook
from .controls import explore
from .style import COLOURS, MARKERS, STYLE, show

_LABEL, _ARROW, _GAP = 1.5, 1.4, 0.9  # in boxes: row label, arrow, gap between groups
_TITLE, _BELOW = 1.4, 0.3  # heights above and below a group, in boxes
_LETTER = 0.17  # width of a letter of a title, in boxes
_WIDE, _LARGEST = 7.4, 0.42  # inches: the widest figure, the largest box
_KEY, _LINE, _TITLE_LETTER = 1.4, 0.22, 0.075  # inches: the width and height of a legend's entry; a letter of the title


def collectives(pairs, alt, title="", per_row=2):
    """Draw {name: (before, after)}, each a list of every rank's list of numbers; None for a rank without any."""
    _draw({name: (None, [before, after]) for name, (before, after) in pairs.items()}, alt, title, per_row)


def holdings(states, alt, title="", per_row=4):
    """Draw what the ranks hold after each step, from left to right; new values are framed.

    `states` is {name: what the ranks hold}, or a list that begins with the state before the first step. A rank holds
    equally many numbers in every state.
    """
    if not isinstance(states, dict):
        states = {f"after step {step}" if step else "start": state for step, state in enumerate(states)}
    rows = list(states.values())
    _draw(
        {name: (before, [state]) for (name, state), before in zip(states.items(), rows[:1] + rows)}, alt, title, per_row
    )


def step_slider(states):
    """Show a slider over the steps of a list of states, as in `holdings`: what ranks hold before and after a step."""
    last = len(states) - 1

    def draw(step):
        pair = {f"before step {step}": states[step - 1], f"after step {step}": states[step]}
        holdings(pair, f"Step {step} of {last}: what each rank holds before and after it; a frame marks what is new.")

    if notebook.is_watched():  # else the figure of all steps, above, suffices
        explore(draw, step=("after step", 1, range(1, last + 1)))


def _draw(groups, alt, title, per_row):
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    names = list(groups)
    lines = [names[i : i + per_row] for i in range(0, len(names), per_row)]
    num_ranks = max(len(state) for _, states in groups.values() for state in states)
    # In a strip of states, only the first one of a row labels its ranks; in before-and-after pairs, each pair does.
    labels = [_LABEL if i == 0 or len(groups[names[0]][1]) > 1 else 0 for i in range(per_row)]
    widths = [
        [labels[i] + max(_width(groups[name][1]), _LETTER * len(name)) for i, name in enumerate(line)] for line in lines
    ]
    columns = [max(line[i] for line in widths if len(line) > i) for i in range(len(widths[0]))]
    wide, high = sum(columns) + _GAP * (len(columns) - 1), len(lines) * (num_ranks + _TITLE + _BELOW)
    inch = min(_LARGEST, (_WIDE - 0.2) / wide)  # side of a box
    # A small drawing gets a small canvas, and a legend of several lines.
    canvas = min(_WIDE, max((wide + 0.2) * inch + 0.09, 2 * _KEY, _TITLE_LETTER * len(title)))
    num_keys = int(canvas / _KEY)
    below = 0.35 + _LINE * (math.ceil(num_ranks / num_keys) - 1)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(canvas, below + 0.25 * bool(title) + high * inch), layout="constrained")
        for j, line in enumerate(lines):
            for i, name in enumerate(line):
                x, y = sum(columns[:i]) + _GAP * i + labels[i], j * (num_ranks + _TITLE + _BELOW)
                axes.text(x, y - 0.6, name, ha="left", va="bottom", fontsize=9.5)
                for rank in range(num_ranks) if labels[i] else ():
                    axes.text(x - 0.2, y + rank + 0.5, f"rank {rank}", ha="right", va="center", fontsize=8, color="0.3")
                _draw_group(axes, *groups[name], x, y, inch)
        keys = [
            Line2D(
                [], [], color=COLOURS[r % 7], marker=MARKERS[r % 7], linestyle="", markersize=8, label=f"from rank {r}"
            )
            for r in range(num_ranks)
        ]
        figure.legend(handles=keys, loc="outside lower left", ncols=min(num_keys, num_ranks))
        axes.set_xlim(-0.1, wide + 0.1)
        axes.set_ylim(high - _TITLE - _BELOW + 0.15, -_TITLE)
        axes.set_aspect("equal", anchor="W")
        axes.set_title(title)
        axes.axis("off")
        show(figure, alt)


def _width(states):
    return sum(map(_columns, states)) + _ARROW * (len(states) - 1)


def _columns(state):
    return max(len(row or (0,)) for row in state)


def _draw_group(axes, before, states, x, y, inch):
    """Draw states from left to right with arrows between them, and frame the values that differ from `before`."""
    all_pieces = {
        piece for state in states for row in state for number in row or () for piece in _pieces(number).values()
    }
    for i, state in enumerate(states):
        if i:
            middle, look = y + len(state) / 2, {"arrowstyle": "-|>", "color": "0.3", "linewidth": 1}
            axes.annotate("", (x - 0.25, middle), (x - _ARROW + 0.25, middle), arrowprops=look)
        # If every piece is in the column of its number, write the numbers once, above the columns.
        is_in_order = all(set(_pieces(n).values()) == {c + 1} for row in state for c, n in enumerate(row or ()))
        is_numbered = not is_in_order and all_pieces != {1}
        for column in range(_columns(state) if is_in_order and all_pieces != {1} else 0):
            axes.text(x + column + 0.5, y - 0.05, column + 1, ha="center", va="bottom", fontsize=7, color="0.4")
        for rank, row in enumerate(state):
            if not row:
                axes.text(x + 0.5, y + rank + 0.5, "–", ha="center", va="center", fontsize=9, color="0.5")
            for column, number in enumerate(row or ()):
                is_new = before is not None and before[rank][column] != number
                _draw_box(axes, x + column, y + rank, _pieces(number), is_new, is_numbered, inch)
        x += _columns(state) + _ARROW


def _pieces(number):
    """Return {rank: the piece that it contributed to the number}."""
    return {rank: int(digit) for rank, digit in enumerate(reversed(str(int(number)))) if digit != "0"}


def _draw_box(axes, x, y, pieces, is_new, is_numbered, inch):
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), 1, 1, facecolor="white", edgecolor="0.7", linewidth=0.6))
    if is_new:
        axes.add_patch(
            Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, fill=False, edgecolor="black", linewidth=1.3, zorder=3)
        )
    side = 1 if len(pieces) == 1 else 2 if max(pieces, default=0) < 4 else 4
    room = 0.8 if is_numbered else 1
    size = 72 * inch * (0.5 if side == 1 else 0.6 / side) * room  # of a symbol, in points
    for rank in pieces:
        # Each rank has a fixed place in a sum, so that sums can be compared at a glance.
        row, column = divmod(rank, side) if side > 1 else (0, 0)
        place = x + room * (column + 0.6) / (side + 0.2), y + room * (row + 0.6) / (side + 0.2)
        axes.plot(*place, MARKERS[rank % 7], color=COLOURS[rank % 7], markersize=size, markeredgewidth=0)
    if is_numbered:
        text = ",".join(map(str, sorted(set(pieces.values()))))
        axes.text(x + 0.95, y + 0.98, text, ha="right", va="bottom", fontsize=7, color="0.3", zorder=4)
