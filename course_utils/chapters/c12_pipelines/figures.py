"""Pipelines and split layers side by side, and together on a mesh of ranks: who sends what to whom."""

from ...plots.passes import BACKWARD, FORWARD, arrow_keys, draw_arrow
from ...plots.pipelines import draw_layer, layer_look, named_arrow
from ...plots.style import COLOURS, STYLE, show


def stages_and_shards(alt):
    """Draw what two ranks send: above as two stages of a pipeline, below as two halves of a pair of layers."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 4.0), layout="constrained")
        _draw_stages(axes)
        _draw_shards(axes)
        handles = arrow_keys() + [Patch(label=f"held by rank {rank}", **layer_look(rank)) for rank in range(2)]
        figure.legend(handles=handles, loc="outside lower left", ncols=4)
        axes.set_xlim(-0.9, 13.3)
        axes.set_ylim(9.6, -0.7)
        axes.axis("off")
        show(figure, alt)


def _draw_stages(axes):
    axes.text(-0.9, -0.35, "by layers: a pipeline of stages", fontsize=9, fontweight="bold")
    for text, x in (("images", 0), ("loss", 12.4)):
        axes.text(x, 1.5, text, ha="center", va="center", fontsize=8.5)
    for rank, left in enumerate((1.7, 7.9)):
        for layer in range(4):
            draw_layer(axes, left + 0.75 * layer, 0.6, 0.6, 1.8, rank)
        axes.text(
            left + 1.4, 2.95, f"layers {4 * rank} to {4 * rank + 3}", ha="center", va="center", fontsize=8, color="0.3"
        )
    for begin, end in ((0.7, 1.6), (10.9, 11.8)):
        named_arrow(axes, begin, 1.5, end, 1.5, FORWARD)
    named_arrow(axes, 4.7, 1.0, 7.8, 1.0, FORWARD, "activations\nsend → recv", above=True)
    named_arrow(axes, 7.8, 2.0, 4.7, 2.0, BACKWARD, "gradients\nrecv ← send")


def _draw_shards(axes):
    axes.text(-0.9, 4.05, "inside layers: a pair of split layers", fontsize=9, fontweight="bold")
    places = {"x": (0, 6.6), "copy": (2.3, 6.6), "sum": (10.1, 6.6), "y": (12.4, 6.6)}
    for text, (x, y) in places.items():
        look = (
            {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "0.4"}
            if text in ("copy", "sum")
            else None
        )
        axes.text(x, y, text, ha="center", va="center", fontsize=8.5, bbox=look, zorder=3)
    for begin, end in (("x", "copy"), ("sum", "y")):
        named_arrow(axes, places[begin][0] + 0.6, 6.45, places[end][0] - 0.7, 6.45, FORWARD)
        named_arrow(axes, places[end][0] - 0.7, 6.8, places[begin][0] + 0.6, 6.8, BACKWARD)
    for rank, y in enumerate((5.6, 7.6)):
        draw_layer(axes, 4.1, y - 0.55, 1.4, 1.1, rank)
        draw_layer(axes, 7.0, y - 0.4, 1.6, 0.8, rank)
        axes.text(4.8, y, "columns", ha="center", va="center", fontsize=7.5)
        axes.text(7.8, y, "rows", ha="center", va="center", fontsize=7.5)
        for left, right, y0, y1 in ((2.9, 4.0, 6.6, y), (5.55, 6.95, y, y), (8.65, 9.6, y, 6.6)):
            named_arrow(axes, left, y0 - 0.12, right, y1 - 0.12, FORWARD)
            named_arrow(axes, right, y1 + 0.14, left, y0 + 0.14, BACKWARD)
    for x, forward, backward in ((2.3, "nothing", "all-reduce"), (10.1, "all-reduce", "nothing")):
        axes.text(x, 8.75, f"forward: {forward}", ha="center", fontsize=8, color=COLOURS[0])
        axes.text(x, 9.3, f"backward: {backward}", ha="center", fontsize=8, color=COLOURS[1])


def mesh_of_eight(alt):
    """Draw 2 × 2 × 2 ranks: stages side by side, replicas below one another, each a pair that shares its layers."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    tops = 0.6, 1.7, 3.8, 4.9  # of the rows: replica 0's two shards, replica 1's
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 4.2), layout="constrained")
        for stage, left in enumerate((2.6, 8.4)):
            axes.text(left + 1.2, 0.25, f"stage {stage}: blocks {2 * stage}, {2 * stage + 1}", ha="center", fontsize=9)
            for row, top in enumerate(tops):
                draw_layer(axes, left, top, 2.4, 0.75, row % 2)
                axes.text(left + 1.2, top + 0.38, f"rank {4 * stage + row}", ha="center", va="center", fontsize=8.5)
            _draw_axes_of(axes, left, tops, outside=left if stage == 0 else left + 2.4, side=2 * stage - 1)
        for top in tops:
            named_arrow(axes, 5.1, top + 0.22, 8.3, top + 0.22, FORWARD)
            named_arrow(axes, 8.3, top + 0.53, 5.1, top + 0.53, BACKWARD)
        for replica, y in enumerate((1.5, 4.7)):
            axes.text(6.7, y + 0.05, "pp: send and receive", ha="center", va="center", fontsize=8)
            samples = f"samples {4 * replica} to {4 * replica + 3}"
            axes.text(-0.3, y, f"replica {replica}:\n{samples}", fontsize=8.5, va="center")
        halves = [Patch(label=f"half {half} of a split layer", **layer_look(half)) for half in range(2)]
        figure.legend(handles=arrow_keys() + halves, loc="outside lower left", ncols=4)
        axes.set_xlim(-0.4, 13.8)
        axes.set_ylim(5.9, -0.2)
        axes.axis("off")
        show(figure, alt)


def _draw_axes_of(axes, left, tops, outside, side):
    """Draw one stage's arrows along tp, inside a replica, and along dp, outside on the left (`side` -1) or right."""
    for top in tops[::2]:
        draw_arrow(axes, (left + 0.9, top + 0.75), (left + 0.9, top + 1.1), {"color": "0.2"}, 1.3, heads="<->")
        axes.text(left + 1.05, top + 0.93, "tp: sum", va="center", fontsize=8)
    for row in range(2):
        begin, end = ((outside + 0.08 * side, tops[row + shift] + 0.38) for shift in (0, 2))
        bend = f"arc3,rad={0.35 * side * (-1 if row else -0.8)}"
        look = {"color": COLOURS[3], "linestyle": "-.", "connectionstyle": bend}
        draw_arrow(axes, begin, end, look, 1.3, heads="<->")
    text = {"ha": "right" if side < 0 else "left", "va": "center", "fontsize": 8}
    axes.text(outside + 0.95 * side, 2.75, "dp:\naverage", **text)
