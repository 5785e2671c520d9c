"""Pipelines and split layers: who sends what to whom, and charts of several schedules on one time axis."""

from .drawings import draw_part
from .passes import draw_arrow, draw_stages, name_tasks
from .style import COLOURS, DASHES, HATCHES, new_figure, pale, show

RANKS = (2, 4)  # palette indices; 0 and 1 are forward and backward


def gantts(
    charts, alt, title="", xlabel="time", scale=1, source="", placement=None, curves=None, ylabel="", rows="stage"
):
    """Draw {name: spans} as one chart of boxes each, below one another on one time axis; each chart begins at 0.

    Spans are (stage, micro_batch, phase, begin, end), and `rows` names what their first item counts. `curves` is
    {name: [(time, value)]}: step curves in a panel below the charts, on the same axis. All times are multiplied by
    `scale`: 1e3 converts seconds to ms. `source` and `placement` are those of `lines`.
    """
    charts = {name: [(*span[:3], scale * span[3], scale * span[4]) for span in spans] for name, spans in charts.items()}
    heights = [0.62 + 0.27 * max(span[0] for span in spans) for spans in charts.values()] + [1.5] * bool(curves)
    with new_figure("", "", title, height=1.1 + sum(heights), source=source, placement=placement) as (figure, axes):
        axes.remove()
        panels = figure.subplots(len(heights), sharex=True, gridspec_kw={"height_ratios": heights}, squeeze=False)[:, 0]
        whole = max(max(span[4] for span in spans) - min(span[3] for span in spans) for spans in charts.values())
        for axes, (name, spans) in zip(panels, charts.items()):
            draw_stages(axes, spans, whole, rows)
            axes.set_title(name, fontsize=9)
        for i, (name, points) in enumerate((curves or {}).items()):
            look = {"color": COLOURS[(i + 2) % 7], "linestyle": DASHES[i % 7], "linewidth": 1.4}
            panels[-1].step(
                [scale * time for time, _ in points], [value for _, value in points], where="post", label=name, **look
            )
        if curves:
            panels[-1].legend(loc="upper center", fontsize=8, ncols=len(curves))
            panels[-1].set_ylabel(ylabel)
            panels[-1].set_ylim(0, 1.35 * panels[-1].dataLim.y1)  # room for the legend
        name_tasks(figure, {span[2] for spans in charts.values() for span in spans} | {"forward", "backward"})
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        panels[-1].set_xlabel(xlabel)
        panels[-1].set_xlim(0, whole)
        show(figure, alt)


def draw_layer(axes, left, top, wide, high, rank):
    """Draw a layer, or a part of one, in the colour of the rank or device that holds it."""
    draw_part(axes, left, top, wide, high, **layer_look(rank))


def layer_look(rank):
    return {"facecolor": pale(COLOURS[RANKS[rank]]), "edgecolor": "white", "hatch": HATCHES[RANKS[rank]] * rank}


def named_arrow(axes, x0, y0, x1, y1, look, text="", above=False):
    """Draw an arrow with `text` below its middle, or above it."""
    draw_arrow(axes, (x0, y0), (x1, y1), look, linewidth=1.3)
    place, where = ((x0 + x1) / 2, y0 - 0.15 if above else y0 + 0.2), "bottom" if above else "top"
    axes.text(*place, text, ha="center", va=where, fontsize=8, color=look["color"], linespacing=1.2)
