"""Figures of sharded training: what a rank gathers, uses and frees in a step, in theory and measured."""

from ...plots.style import COLOURS, HATCHES, STYLE, keys, new_figure, pale, show
from . import gathers

_PHASES = ("forward", "backward", "Adam")
_FREE = 0.15  # time of freeing, so that the valleys are visible


def schedule(num_units=3):
    """Return one step in unit times, (messages, computing, whole), each [(begin, end, unit, what)].

    `whole` has the spans in which a unit's full parameters or gradients exist. Unit -1 stands for all units.
    """
    messages, computing, whole, now = [], [], [], 0
    for unit in range(num_units):
        messages.append((now, now + 1, unit, "gather"))
        computing.append((now + 1, now + 2 - _FREE, unit, "forward"))
        whole.append((now, now + 2 - _FREE, unit, "parameters"))
        now += 2
    for unit in reversed(range(num_units)):
        messages += [(now, now + 1, unit, "gather"), (now + 2, now + 3 - _FREE, unit, "reduce-\nscatter")]
        computing.append((now + 1, now + 2, unit, "backward"))
        whole += [(now, now + 3 - _FREE, unit, "parameters"), (now + 1, now + 3 - _FREE, unit, "gradients")]
        now += 3
    computing.append((now, now + 1, -1, "Adam"))
    return messages, computing, whole


def held(num_units=3, num_ranks=4):
    """Return [(time, parameters and gradients that a rank holds from then on)], in sizes of a unit's parameters."""
    _, computing, whole = schedule(num_units)
    reduced = [end for _, end, _, what in whole if what == "gradients"]
    times = sorted({0, computing[-1][1], *(time for begin, end, _, _ in whole for time in (begin, end))})
    shards = [(num_units + sum(end <= time for end in reduced)) / num_ranks for time in times]
    return [
        (time, shard + sum(begin <= time < end for begin, end, _, _ in whole)) for time, shard in zip(times, shards)
    ]


def sharded_step(alt, num_units=3, num_ranks=4):
    """Draw a sketch of a step in which each unit is gathered, used and freed, as one rank sees it, and its memory."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    messages, computing, whole = schedule(num_units)
    end = computing[-1][1]
    with plt.rc_context(STYLE):
        figure, (upper, lower) = plt.subplots(
            2,
            1,
            figsize=(7.2, 1.9 + 0.72 * num_units),
            layout="constrained",
            sharex=True,
            gridspec_kw={"height_ratios": [1.6 + 1.1 * num_units, 1.7]},
        )
        for y, spans, colour in ((0, messages, COLOURS[4]), (1, computing, COLOURS[5])):
            for begin, finish, unit, what in spans:
                upper.barh(y, finish - begin, 0.86, begin, color=pale(colour), edgecolor="white", linewidth=1)
                upper.text((begin + finish) / 2, y, what, ha="center", va="center", fontsize=5.8, linespacing=0.95)
        for unit in range(num_units):
            _draw_unit(upper, unit, [span for span in whole if span[2] == unit], end, num_ranks)
        rows = [2.45 + 1.9 * unit for unit in range(num_units)]
        upper.set_yticks([0, 1, *rows], ["sends", "computes", *(f"unit {unit}" for unit in range(num_units))])
        upper.set_ylim(rows[-1] + 0.85, -0.6)
        times, curve = zip(*held(num_units, num_ranks))
        lower.step(times, curve, where="post", color=COLOURS[6], linewidth=1.3)
        lower.set_ylabel("held")
        lower.set_ylim(0, max(curve) * 1.15)
        for axes in (upper, lower):
            axes.set_xlim(0, end)
            axes.set_xticks([])
            axes.grid(visible=False)
        lower.set_yticks([0])
        lower.set_xlabel("time: a sketch in which nothing overlaps, not a measurement")
        handles = keys(["parameters", "gradients"], pale)
        handles.append(Patch(facecolor="white", edgecolor="0.4", label=f"thin: this rank's shard, 1/{num_ranks}"))
        figure.legend(handles=handles, loc="outside upper right", ncols=3)
        show(figure, alt)


def _draw_unit(axes, unit, whole, end, num_ranks):
    """Draw two tracks, parameters and gradients: a box while they exist in full, a thin strip for the shard."""
    top = 1.7 + 1.9 * unit
    reduced = max(finish for _, finish, _, what in whole if what == "gradients")
    for i, (kind, begin) in enumerate((("parameters", 0), ("gradients", reduced))):
        y, look = top + 0.8 * i, {"color": pale(COLOURS[i]), "hatch": HATCHES[i], "edgecolor": "white", "linewidth": 0}
        axes.barh(y + 0.58, end - begin, 0.48 / num_ranks, begin, color=COLOURS[i], linewidth=0)
        for start, finish, _, what in whole:
            if what == kind:
                axes.barh(y + 0.26, finish - start, 0.48, start, **look)


def memory_over_step(steps, alt, title=""):
    """Draw {name: a step from `measure.alive.watch_step`} side by side: MB after each operation, with its phases."""
    top = 1.3 * max(max(step.num_bytes) for step in steps.values()) / 1e6
    devices = [step.device for step in steps.values()]
    with new_figure("", "", title, height=2.7, placement=devices) as (figure, axes):
        axes.remove()
        panels = figure.subplots(1, len(steps), sharey=True, squeeze=False)[0]
        for axes, (name, step) in zip(panels, steps.items()):
            mb = [num_bytes / 1e6 for num_bytes in step.num_bytes]
            axes.step(range(len(mb)), mb, where="post", color=COLOURS[0], linewidth=1.2)
            for phase, (begin, end) in step.phases.items():
                i = _PHASES.index(phase)
                axes.axvspan(begin, end, facecolor=pale(COLOURS[(4, 5, 2)[i]]), alpha=0.5, linewidth=0)
                is_narrow = (end - begin) / len(mb) < 0.08 * len(steps)
                axes.text(
                    (begin + end) / 2, 0.98 * top, phase, ha="center", va="top", fontsize=7, rotation=90 * is_narrow
                )
            where = mb.index(max(mb))
            axes.plot(where, mb[where], "o", color=COLOURS[1], markersize=4)
            axes.annotate(
                f"{mb[where]:.1f}", (where, mb[where]), (0, 4), textcoords="offset points", ha="center", fontsize=8
            )
            axes.set_title(name, fontsize=9)
            axes.set_xlabel("operations, in order", fontsize=8)
            axes.set_xlim(0, len(mb))
            axes.set_ylim(0, top)
            axes.set_xticks([])
            axes.grid(axis="x", visible=False)
        panels[0].set_ylabel("MB of tensors held")
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        show(figure, alt)


def peaks_over_units(sizes, measured, computed, alt, placement):
    """Draw peaks in MB over the layers in a unit: {name: MB} `measured` as lines, `computed` as large open marks."""
    xlabel, ylabel = "layers in a unit", "MB at the peak of a forward pass"
    with new_figure(xlabel, ylabel, "Larger units, higher peaks", height=3.1, placement=placement) as (figure, axes):
        for name, mark, colour in zip(computed, "os", (COLOURS[2], COLOURS[4])):
            look = {"linestyle": "", "markersize": 13, "markerfacecolor": "none", "markeredgewidth": 1.6}
            axes.plot(sizes, computed[name], mark, label=f"computed: {name}", color=colour, **look)
        for name, mark, colour in zip(measured, "ov", COLOURS):
            axes.plot(sizes, measured[name], mark, linestyle="-", label=name, color=colour, markersize=4)
        axes.set_ylim(0, 1.15 * max(map(max, (measured | computed).values())))
        axes.set_xticks(sizes)
        figure.legend(loc="outside upper right", ncols=2)
        show(figure, alt)


def gathers_beside_layers(ways, alt):
    """Draw {title: events of `gathers.watch_gathers`} one below the other, gathers above what computes meanwhile."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    drawn = {title: gathers.spans(events) for title, events in ways.items()}
    end = max(finish for _, computing in drawn.values() for _, finish, *_ in computing)
    looks = {"forward": COLOURS[5], "backward": COLOURS[2]}
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(len(ways), 1, figsize=(7.2, 0.6 + 1.05 * len(ways)), layout="constrained")
        for axes, (title, (sent, computing)) in zip(panels, drawn.items()):
            for begin, finish, unit in sent:
                is_beside = any(b < finish and begin < e for b, e, *_ in computing)
                hatch = HATCHES[1] if is_beside else ""
                axes.barh(0, finish - begin, 0.8, begin, color=pale(COLOURS[4]), hatch=hatch, edgecolor="white")
                _name(axes, (begin + finish) / 2, 0, unit)
            for begin, finish, unit, which in computing:
                axes.barh(1, finish - begin, 0.8, begin, color=pale(looks[which]), edgecolor="white")
                _name(axes, (begin + finish) / 2, 1, unit)
            axes.set_yticks([0, 1], ["gather", "compute"])
            axes.set_ylim(1.5, -0.5)
            axes.set_xlim(0, end)
            axes.set_xticks([])
            axes.grid(visible=False)
            axes.set_title(title, fontsize=9, loc="left")
        panels[-1].set_xlabel("order of one step: observed; the lengths are a sketch")
        handles = [Patch(facecolor=pale(colour), label=which) for which, colour in looks.items()]
        handles.insert(0, Patch(facecolor=pale(COLOURS[4]), hatch=HATCHES[1], label="gather beside a computation"))
        figure.legend(handles=handles, loc="outside upper right", ncols=3, fontsize=8)
        show(figure, alt)


def _name(axes, x, y, unit):
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
    axes.text(x, y, str(unit), ha="center", va="center", fontsize=8, bbox=box)
