"""Drawings of ideas: boxes with arrows, and rectangles for parts."""

from .style import COLOURS, STYLE, show


def diagram(boxes, arrows, alt, height=2.6):
    """Draw an idea, not a measurement: boxes {name: (x, y, text)}, arrows [(from name, to name, text)].

    Arrows run from centre to centre behind the boxes; text that begins with "<->" gives an arrow two heads. An arrow's
    optional fourth entry is its width in points.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, height), layout="constrained")
        axes.axis("off")
        patches = {}
        for name, (x, y, text) in boxes.items():
            look = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": COLOURS[0], "linewidth": 1.2}
            patches[name] = axes.text(x, y, text, ha="center", va="center", bbox=look, zorder=3, fontsize=8.5)
        for start, end, text, *width in arrows:
            (x0, y0, _), (x1, y1, _) = boxes[start], boxes[end]
            heads = "<->" if text.startswith("<->") else "->"
            look = {
                "arrowstyle": heads,
                "color": COLOURS[1],
                "linewidth": (width or [1.2])[0],
                "shrinkA": 0,
                "shrinkB": 0,
            }
            look |= {"patchA": patches[start].get_bbox_patch(), "patchB": patches[end].get_bbox_patch()}
            axes.annotate("", (x1, y1), (x0, y0), arrowprops=look)
            place, where = ((x0 + x1) / 2, (y0 + y1) / 2), "left" if x0 <= x1 else "right"
            offset = (3 + look["linewidth"]) * (1 if x0 <= x1 else -1), 0
            level, behind = "bottom", None
            if y0 == y1:
                where, offset = "center", (0, 4)
            elif x0 != x1:  # beside a sloping arrow there is no place that it does not cross
                where, level, offset = "center", "center", (0, 0)
                behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            label = {"textcoords": "offset points", "ha": where, "va": level, "fontsize": 8, "zorder": 4}
            if text.removeprefix("<->"):
                axes.annotate(text.removeprefix("<->"), place, offset, bbox=behind, **label)
        xs, ys = [x for x, _, _ in boxes.values()], [y for _, y, _ in boxes.values()]
        axes.set_xlim(min(xs) - 0.6, max(xs) + 0.6)
        axes.set_ylim(min(ys) - 0.5, max(ys) + 0.5)
        show(figure, alt)


def draw_part(axes, left, top, wide, high, **look):
    """Draw a rectangle, filled as `look` says, and its outline."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((left, top), wide, high, linewidth=0, **look))
    axes.add_patch(Rectangle((left, top), wide, high, fill=False, edgecolor="0.4", linewidth=0.8))
