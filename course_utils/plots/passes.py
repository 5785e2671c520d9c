"""The look of forward and backward passes in every figure: arrows, boxes of scheduled tasks, legends."""

from .style import COLOURS, HATCHES, pale

FORWARD, BACKWARD = {"color": COLOURS[0], "linestyle": "-"}, {"color": COLOURS[1], "linestyle": "--"}
PASSES = {"forward": FORWARD, "backward": BACKWARD}
_BOXES = {"forward": 0, "backward": 1, "input": 4, "weight": 2}  # what a task does: its colour and its hatch
_NAMES = {"input": "gradient of the input", "weight": "gradients of the weights"}


def draw_arrow(axes, begin, end, look, linewidth=1.2, heads="->"):
    """Draw an arrow between two points (x, y); `look` is FORWARD, BACKWARD or another dict of line properties."""
    axes.annotate(
        "", end, begin, arrowprops={"arrowstyle": heads, "linewidth": linewidth, "shrinkA": 0, "shrinkB": 0, **look}
    )


def arrow_keys(text="{}", looks=PASSES):
    """Return lines for a legend, one for each pass in `looks`; `text` is their label, with {} for the pass."""
    from matplotlib.lines import Line2D

    return [Line2D([], [], label=text.format(name), **look) for name, look in looks.items()]


def draw_tasks(axes, spans, whole):
    """Draw each span (stage, micro_batch, phase, begin, end) as a box; the first begin is at 0.

    A box shows the number of its micro-batch if it fits; `whole` is the length of the axis.
    """
    first = min(span[3] for span in spans)
    looks = {phase: {"color": pale(COLOURS[i]), "hatch": HATCHES[i]} for phase, i in _BOXES.items()}
    for stage, micro_batch, phase, begin, end in spans:
        axes.barh(stage, end - begin, 0.8, begin - first, edgecolor="white", linewidth=0.8, **looks[phase])
        text = str(micro_batch)
        if (end - begin) / whole > 0.013 * len(text):  # width that the number needs
            axes.text((begin + end) / 2 - first, stage, text, ha="center", va="center", fontsize=7)


def draw_stages(axes, spans, whole, rows="stage"):
    """Draw a panel of `draw_tasks`, with one row per stage, or whatever `rows` calls it, the first on top."""
    draw_tasks(axes, spans, whole)
    num_stages = 1 + max(span[0] for span in spans)
    axes.set_yticks(range(num_stages), [f"{rows} {number}" for number in range(num_stages)], fontsize=8)
    axes.set_ylim(num_stages - 0.5, -0.5)
    axes.grid(visible=False)


def name_tasks(figure, phases=tuple(PASSES)):
    """Add the boxes of `draw_tasks` for these phases to the figure's legend."""
    from matplotlib.patches import Patch

    looks = {
        phase: {"facecolor": pale(COLOURS[i]), "hatch": HATCHES[i], "edgecolor": "white"}
        for phase, i in _BOXES.items()
        if phase in phases
    }
    words = "{} of micro-batch 0, 1, …" if len(looks) == 2 else "{}"
    handles = [Patch(label=words.format(_NAMES.get(phase, phase)), **look) for phase, look in looks.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
