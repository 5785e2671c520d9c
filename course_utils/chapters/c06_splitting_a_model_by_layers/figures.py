"""Figures of chapter 06: a network cut in two, pipeline schedules, and the three phases of 1F1B."""

from ...plots.passes import BACKWARD, FORWARD, PASSES, arrow_keys, draw_stages, draw_tasks, name_tasks
from ...plots.pipelines import draw_layer, named_arrow
from ...plots.style import COLOURS, DASHES, HATCHES, OWN_COLOURS, STYLE, new_figure, show

PHASES = ("warm-up", "steady state", "cool-down")
_SHADES = ("0.65", "0.3", "0.65")  # greys, since colours stand for passes and schedules


def cut_in_two(alt):
    """Draw a network of nine layers on two devices: what crosses the cut, and what each device holds: an idea."""
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 2.3), layout="constrained")
        for text, x, y in (("images", 0, 1.5), ("loss", 13.2, 1.5), ("labels", 13.2, 3.6)):
            axes.text(x, y, text, ha="center", va="center", fontsize=8.5)
        for device, (left, num_layers) in enumerate(((1.7, 4), (7.7, 5))):
            for layer in range(num_layers):
                draw_layer(axes, left + 0.75 * layer, 0.6, 0.6, 1.8, device)
            middle = left + (0.75 * num_layers - 0.15) / 2
            axes.text(middle, 0.25, f"stage {device}, on device {device}", ha="center", fontsize=8.5)
            held = "holds the weights, gradients,\noptimizer state and activations\nof its own layers"
            axes.text(middle, 2.65, held, ha="center", va="top", fontsize=8, color="0.3", linespacing=1.3)
        for begin, end in ((0.7, 1.6), (11.5, 12.7)):
            named_arrow(axes, begin, 1.5, end, 1.5, FORWARD)
        named_arrow(axes, 13.2, 3.25, 13.2, 1.85, FORWARD)
        named_arrow(axes, 4.7, 1.1, 7.6, 1.1, FORWARD, "activations", above=True)
        named_arrow(axes, 7.6, 1.9, 4.7, 1.9, BACKWARD, "gradients")
        for begin, end in ((-0.3, 0.65), (1.15, 1.85), (2.35, 4.2)):  # leaves the arrows' words free
            axes.plot([6.15] * 2, [begin, end], color="0.6", linewidth=0.8, linestyle=(0, (4, 4)))
        cut = Line2D([], [], color="0.6", linewidth=0.8, linestyle=(0, (4, 4)), label="the cut")
        figure.legend(handles=[*arrow_keys(), cut], loc="outside lower center", ncols=3)
        axes.set_xlim(-0.7, 14)
        axes.set_ylim(4.3, -0.4)
        axes.axis("off")
        show(figure, alt)


def schedules(charts, alt, until, *, source):
    """Draw {title: spans} one below the other, and at the bottom how many micro-batches stage 0 holds.

    The time axis ends at `until`; a chart that goes on says until when. The spans begin at 0, as `pipeline.place` makes
    them.
    """
    from matplotlib.ticker import MultipleLocator

    rows = [1 + max(span.stage for span in spans) for spans in charts.values()]
    heights = [0.35 + 0.24 * n for n in rows] + [1.4]
    with new_figure("", "", "", height=1.1 + sum(heights), source=source) as (figure, axes):
        axes.remove()
        panels = figure.subplots(len(heights), sharex=True, gridspec_kw={"height_ratios": heights}, squeeze=False)[:, 0]
        for i, (axes, (title, spans)) in enumerate(zip(panels, charts.items())):
            draw_stages(axes, [span for span in spans if span.begin < until], until)
            axes.set_title(title, fontsize=9)
            end = max(span.end for span in spans)
            if end > until:
                look = {"ha": "right", "va": "bottom", "fontsize": 8, "color": "0.3", "transform": axes.transAxes}
                axes.text(1, 1.02, f"and so on, until {end:g} →", **look)
            name = title.partition(":")[0]
            look = {
                "color": OWN_COLOURS.get(name, COLOURS[(2, 4, 3)[i % 3]]),
                "linestyle": DASHES[i % 7],
                "linewidth": 1.6,
            }
            panels[-1].step(*zip(*held(spans)), where="post", label=name, **look)
        panels[-1].legend(loc="upper right", fontsize=8)
        panels[-1].set_ylabel("micro-batches\nheld by stage 0", fontsize=8)
        most = max(count for spans in charts.values() for _, count in held(spans))
        panels[-1].yaxis.set_major_locator(MultipleLocator(-(-most // 4)))
        panels[-1].set_ylim(bottom=0)
        panels[-1].margins(y=0.1)
        panels[-1].set_xlabel("units of time")
        panels[-1].set_xlim(0, until)
        name_tasks(figure)
        show(figure, alt)


def phases_1f1b(spans, phases, alt, title="", *, source):
    """Draw a chart of `spans` with a grey strip above each row for its `phases`.

    `phases` are as `pipeline.phases_1f1b` returns them.
    """
    whole, num_stages = max(span.end for span in spans), len(phases)
    with new_figure("units of time", "", title, height=1.6 + 0.45 * num_stages, source=source) as (figure, axes):
        draw_stages(axes, spans, whole)
        times = {span[:3]: span for span in spans}
        for stage, parts in enumerate(phases):
            for i, tasks in enumerate(parts):
                if tasks:
                    begin, end = times[tuple(tasks[0])].begin, times[tuple(tasks[-1])].end
                    look = {"color": _SHADES[i], "edgecolor": "white", "linewidth": 0.8}
                    axes.barh(stage - 0.45, end - begin, 0.12, begin, **look)
                    if stage == 0:
                        axes.text(
                            (begin + end) / 2, -0.68, PHASES[i], ha="center", va="bottom", fontsize=8, color="0.2"
                        )
        axes.set_ylim(num_stages - 0.5, -1.15)
        axes.set_xlim(0, whole)
        name_tasks(figure)
        show(figure, alt)


def held(spans, stage=0):
    """Return [(time, micro-batches that `stage` holds from then on)].

    A forward adds one when it begins, a backward removes one when it ends.
    """
    changes = [(span.begin, 1) if span.phase == "forward" else (span.end, -1) for span in spans if span.stage == stage]
    times = sorted({0.0, *(time for time, _ in changes)})
    return [(now, sum(more for time, more in changes if time <= now)) for now in times]


def interleaved(spans, num_devices, alt, title="", *, source):
    """Draw spans with two stages per device, a row per device: its second stage is darker, with bold numbers.

    `spans` are as `pipeline.place` returns them for `num_devices`.
    """
    from matplotlib.patches import Patch

    whole = max(span.end for span in spans)
    looks = {
        (phase, chunk): {"facecolor": _shade(look["color"], (0.3, 0.65)[chunk]), "hatch": HATCHES[phase == "backward"]}
        for phase, look in PASSES.items()
        for chunk in range(2)
    }
    with new_figure("units of time", "", title, height=1.6 + 0.36 * num_devices, source=source) as (figure, axes):
        for span in spans:
            chunk, device = divmod(span.stage, num_devices)
            axes.barh(
                device, span.end - span.begin, 0.8, span.begin, edgecolor="white", linewidth=0.8,
                **looks[span.phase, chunk],
            )  # fmt: skip
            middle, weight = (span.begin + span.end) / 2, ("normal", "bold")[chunk]
            axes.text(middle, device, span.micro_batch, ha="center", va="center", fontsize=7.5, fontweight=weight)
        words = ("{}, first stage", "{}, second stage")
        handles = [
            Patch(label=words[chunk].format(phase), edgecolor="white", **look) for (phase, chunk), look in looks.items()
        ]
        figure.legend(handles=handles, loc="outside upper right", ncols=2, fontsize=8)
        axes.set_yticks(range(num_devices), [f"device {device}" for device in range(num_devices)])
        axes.set_ylim(num_devices - 0.5, -0.5)
        axes.set_xlim(0, whole)
        axes.grid(visible=False)
        show(figure, alt)


def _shade(colour, strength):
    from matplotlib.colors import to_rgb

    return tuple(1 - strength + strength * part for part in to_rgb(colour))


def gantt(spans, alt, title="", xlabel="units of time", num_stages=None, source="", placement=None):
    """Draw a box for each (stage, micro_batch, phase, begin, end), and leave idle time white.

    A row is a stage, colour and hatch are the phase, the number is the micro-batch. `num_stages` gives charts of fewer
    stages the same height. `source` and `placement` are those of `plots.lines`.
    """
    rows = max(num_stages or 0, 1 + max(span[0] for span in spans))
    whole = max(span[4] for span in spans) - min(span[3] for span in spans)
    with new_figure(xlabel, "", title, height=1.25 + 0.36 * rows, source=source, placement=placement) as (figure, axes):
        draw_tasks(axes, spans, whole)
        name_tasks(figure)
        axes.set_yticks(range(rows), [f"stage {stage}" for stage in range(rows)])
        axes.set_ylim(rows - 0.5, -0.5)
        axes.set_xlim(0, whole)
        axes.grid(visible=False)
        show(figure, alt)
