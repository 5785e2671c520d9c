"""Figures of chapter 03: the phases of a training step, and three clocks that time it."""

from ...plots.style import COLOURS, HATCHES, STYLE, pale, show

_PHASES = {  # name: (x, y, text)
    "load": (0.95, 2.1, "load\na batch"),
    "forward": (3.7, 2.1, "forward:\nloss"),
    "backward": (6.1, 2.1, "backward:\ngradients"),
    "update": (8.5, 2.1, "update:\nweights"),
}
_KEPT = {
    "weights": (6.1, 3.45, "weights"),
    "activations": (4.9, 0.7, "activations"),
    "gradients": (7.3, 0.7, "gradients"),
    "state": (9.15, 0.7, "optimizer\nstate"),
}
_WRITES, _READS = COLOURS[1], "0.35"
_ARROWS = [  # from, to, colour, curvature
    ("load", "forward", COLOURS[0], 0), ("forward", "backward", COLOURS[0], 0), ("backward", "update", COLOURS[0], 0),
    ("weights", "forward", _READS, 0.18), ("weights", "backward", _READS, 0), ("update", "weights", _WRITES, 0.18),
    ("forward", "activations", _WRITES, 0), ("activations", "backward", _READS, 0),
    ("backward", "gradients", _WRITES, 0), ("gradients", "update", _READS, 0),
    ("state", "update", _READS, 0), ("update", "state", _WRITES, 0.35),
]  # fmt: skip


def training_step(alt):
    """Draw the phases of a step on host and device, and the memory that each reads and writes: an idea."""
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 2.9), layout="constrained")
        for name, left, wide in (("host", 0, 1.9), ("device", 2.6, 7.4)):
            look = {"fill": False, "edgecolor": "0.5", "linestyle": "--"}
            axes.add_patch(Rectangle((left, 0), wide, 4.1, **look))
            axes.text(left + 0.12, 3.82, name, fontsize=8, va="center", color="0.3")
        patches = {}
        for boxes, face in ((_PHASES, "white"), (_KEPT, pale(COLOURS[4]))):
            for name, (x, y, text) in boxes.items():
                look = {"boxstyle": "round,pad=0.45", "facecolor": face, "edgecolor": COLOURS[0], "linewidth": 1.2}
                look |= {} if face == "white" else {"boxstyle": "square,pad=0.4", "edgecolor": "0.5", "linewidth": 0.8}
                patches[name] = axes.text(x, y, text, ha="center", va="center", fontsize=8.5, bbox=look, zorder=3)
        for start, end, colour, bend in _ARROWS:
            look = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.2, "shrinkA": 1, "shrinkB": 1}
            look |= {"patchA": patches[start].get_bbox_patch(), "patchB": patches[end].get_bbox_patch()}
            places = [(_PHASES | _KEPT)[name][:2] for name in (end, start)]
            axes.annotate("", *places, arrowprops=look | {"connectionstyle": f"arc3,rad={bend}"})
        axes.text(2.28, 2.2, "copy", ha="center", va="bottom", fontsize=8)
        names = {"next phase": COLOURS[0], "writes": _WRITES, "reads": _READS}
        keys = [Line2D([], [], color=colour, label=name) for name, colour in names.items()]
        figure.legend(handles=keys, loc="outside lower right", ncols=3)
        axes.set_xlim(-0.1, 10.1)
        axes.set_ylim(-0.05, 4.2)
        axes.axis("off")
        show(figure, alt)


def clocks(ways, alt):
    """Draw when Python and the device work, and what a clock reads, one panel per way: an idea.

    `ways` is {title: (ask, work, number of steps, "never", "each" or "end")}: the time Python takes to ask for a step,
    the time the device takes for it, and when Python waits for the device.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, rows = plt.subplots(
            len(ways), 1, figsize=(6.8, 0.35 + 1.25 * len(ways)), layout="constrained", sharex=True
        )
        for axes, (title, way) in zip(rows, ways.items()):
            python, device, read = late_device(*way)
            for y, spans in enumerate((python, device)):
                for begin, end, what in spans:
                    look = {"color": pale(COLOURS[y])} if what else {"color": "0.9", "hatch": HATCHES[1]}
                    axes.barh(y, end - begin, 0.7, begin, edgecolor="white", linewidth=1, **look)
                    axes.text(
                        (begin + end) / 2,
                        y,
                        what or ("waits" if end - begin > 0.5 else ""),
                        ha="center",
                        va="center",
                        fontsize=7.5,
                    )
            axes.annotate(
                "", (0, 1.75), (read, 1.75), arrowprops={"arrowstyle": "|-|,widthA=0.3,widthB=0.3", "linewidth": 1}
            )
            axes.text(
                read + 0.1, 1.75, f"the clock reads {read:g}: {read / way[2]:.2g} per step", va="center", fontsize=8
            )
            axes.set_title(title)
            axes.set_yticks([0, 1], ["Python asks", "device works"])
            axes.set_ylim(2.2, -0.5)
            axes.grid(visible=False)
        rows[-1].set_xlabel("time (1 is the time to ask for one step)")
        show(figure, alt)


def late_device(ask, work, num_steps, waits):
    """Return the spans (begin, end, step) of Python and of an asynchronous device, and when the clock stops.

    A span with an empty step is Python waiting.
    """
    python, device, now, done = [], [], 0.0, 0.0
    for step in range(1, num_steps + 1):
        python.append((now, now + ask, str(step)))
        now += ask
        begin = max(now, done)
        done = begin + work
        device.append((begin, done, str(step)))
        if waits == "each" or (waits == "end" and step == num_steps):
            python.append((now, done, ""))
            now = done
    return python, device, now
