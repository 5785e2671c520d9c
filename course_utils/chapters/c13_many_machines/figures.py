"""Figures of nodes and process groups: which messages stay inside a node, and which leave it."""

from ...plots.style import COLOURS, MARKERS, STYLE, new_figure, pale, show

_NEAR, _FAR = COLOURS[0], COLOURS[1]  # inside a node, between nodes


def hops_of(groups, num_gpus):
    """Return the hops, (from, to, whether it leaves the node), of a ring over each of `groups`, lists of ranks.

    A node has `num_gpus` ranks.
    """
    hops = []
    for ranks in groups:
        pairs = zip(ranks, [*ranks[1:], ranks[0]]) if len(ranks) > 1 else ()
        hops += [(src, dst, src // num_gpus != dst // num_gpus) for src, dst in pairs]
    return hops


def nodes(panels, alt, num_nodes=2, num_gpus=4):
    """Draw {title: [groups, each a list of ranks]}: a row per node, a circle per rank, arrows along each group's ring.

    Ranks are numbered node by node. Arrows between nodes are thicker and in another colour; a rank without arrows is
    alone in its groups. This is a sketch, not a measurement.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(
            1, len(panels), figsize=(7.4, 0.75 + 0.8 * num_nodes), layout="constrained", squeeze=False
        )
        for axes, (title, groups) in zip(grid.flat, panels.items()):
            _draw_nodes(axes, num_nodes, num_gpus, is_first=axes is grid.flat[0])
            for src, dst, leaves in hops_of(groups, num_gpus):
                _draw_hop(axes, divmod(src, num_gpus), divmod(dst, num_gpus), leaves)
            axes.set_title(title, fontsize=9, loc="center")
            axes.set_xlim(-0.95, num_gpus - 0.45)
            axes.set_ylim(1.25 * (num_nodes - 1) + 0.6, -0.85)
            axes.axis("off")
        show(figure, alt)


def _draw_nodes(axes, num_nodes, num_gpus, is_first):
    from matplotlib.patches import FancyBboxPatch

    for node in range(num_nodes):
        look = {
            "boxstyle": "round,pad=0.02,rounding_size=0.12",
            "facecolor": pale(COLOURS[5]),
            "edgecolor": "0.6",
            "alpha": 0.45,
        }
        axes.add_patch(FancyBboxPatch((-0.42, 1.25 * node - 0.45), num_gpus - 0.16, 0.9, **look))
        axes.text(
            -0.52, 1.25 * node, f"node {node}" if is_first else "", rotation=90, ha="right", va="center", fontsize=8
        )
        for local_rank in range(num_gpus):
            look = {"boxstyle": "circle,pad=0.28", "facecolor": "white", "edgecolor": "0.35", "linewidth": 1}
            rank = node * num_gpus + local_rank
            axes.text(local_rank, 1.25 * node, str(rank), ha="center", va="center", fontsize=8.5, bbox=look, zorder=4)
    for local_rank in range(num_gpus):
        axes.text(local_rank, -0.55, f"local {local_rank}", ha="center", va="bottom", fontsize=6.5, color="0.35")


def _draw_hop(axes, src, dst, leaves):
    """Draw an arrow between two places, (node, local rank), bent if it would cover another arrow or rank."""
    (node, column), (to_node, to_column) = src, dst
    is_neighbour = abs(column - to_column) == 1 and node == to_node
    bend = 0.0 if is_neighbour or (leaves and column != to_column) else 0.25 if leaves else 0.33
    look = {
        "arrowstyle": "-|>",
        "color": _FAR if leaves else _NEAR,
        "linewidth": 2 if leaves else 1.2,
        "mutation_scale": 9,
    }
    look |= {"connectionstyle": f"arc3,rad={bend}", "shrinkA": 8, "shrinkB": 8}
    axes.annotate("", (to_column, 1.25 * to_node), (column, 1.25 * node), arrowprops=look, zorder=3)


def restart(steps, phases, alt, placement):
    """Draw [(seconds since a kill, step)] and, shaded, the phases of the restart, {phase: seconds at its end}."""
    with new_figure(
        "seconds since the kill",
        "step",
        "Two agents with a worker each, one of which is killed at 0",
        3.2,
        "",
        placement,
    ) as (figure, axes):
        begin = 0.0
        for i, (phase, end) in enumerate(phases.items()):
            axes.axvspan(begin, end, color=pale(COLOURS[i % 2]), zorder=0, linewidth=0)
            axes.annotate(
                f"{phase} {end - begin:.2f} s", ((begin + end) / 2, 0.97), xycoords=("data", "axes fraction"),
                ha="center", va="top", fontsize=7.5, rotation=90,
            )  # fmt: skip
            begin = end
        before = [(when, step) for when, step in steps if when <= 0]
        after = [(when, step) for when, step in steps if when > 0]
        for points in (before, after):  # no line across the outage
            axes.plot(*zip(*points), marker=MARKERS[0], color=COLOURS[2])
        axes.set_ylim(bottom=0)
        show(figure, alt)
