"""Figure of chapter 01: where tensors are after a line of code."""

from ...plots.style import COLOURS, STYLE, pale, show


def places(rows, alt, columns=("host memory", "GPU memory")):
    """Draw a row for each (code, content of the first memory, content of the second): an idea, not measured.

    A row with both contents gets an arrow from the first to the second: the copy. A text that begins with "(", such as
    "(no name)", gets a dashed box: the tensor is gone or out of reach. "" draws nothing.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    lefts, wide, high = (5.2, 9.0), 3.2, len(rows)  # left edges of the memories; their width; rows
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 0.45 + 0.42 * high), layout="constrained")
        for i, (name, left) in enumerate(zip(columns, lefts)):
            axes.add_patch(Rectangle((left, 0), wide, high, facecolor=pale(COLOURS[i]), alpha=0.35, linewidth=0))
            axes.text(left + wide / 2, -0.12, name, ha="center", va="bottom", fontsize=8.5)
        for y, (code, *held) in enumerate(rows):
            axes.text(0, y + 0.5, code, ha="left", va="center", fontsize=9, family="monospace")
            boxes = [_box(axes, left + wide / 2, y + 0.5, text) for left, text in zip(lefts, held) if text]
            if len(boxes) == 2:
                look = {"arrowstyle": "->", "color": COLOURS[1], "linewidth": 1.2, "shrinkA": 0, "shrinkB": 2}
                look |= {"patchA": boxes[0].get_bbox_patch(), "patchB": boxes[1].get_bbox_patch()}
                ends = [(left + wide / 2, y + 0.5) for left in lefts]
                axes.annotate("", ends[1], ends[0], arrowprops=look)
        axes.set_xlim(-0.1, lefts[1] + wide + 0.1)
        axes.set_ylim(high + 0.05, -0.6)
        axes.axis("off")
        show(figure, alt)


def _box(axes, x, y, text):
    is_lost = text.startswith("(")
    look = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "0.5" if is_lost else COLOURS[0]}
    look |= {"linewidth": 1.2, "linestyle": "--" if is_lost else "-"}
    return axes.text(x, y, text, ha="center", va="center", fontsize=8.5, color="0.4" if is_lost else "black", bbox=look)
