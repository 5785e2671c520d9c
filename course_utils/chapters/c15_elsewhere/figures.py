"""Figures: TensorFlow's strategies with their processes, devices and variables; how far each way ends from PyTorch."""

from ...plots.style import COLOURS, STYLE, new_figure, pale, show

# (title, processes). A process is (name, row, devices, variables); variables are None, "one", "each" for a copy per
# device, or "parts" for a part per device.
_STRATEGIES = (
    ("tf.device", [("", 0, 2, "parts")]),
    ("Mirrored", [("", 0, 2, "each")]),
    ("CentralStorage", [("", 0, 2, "one")]),
    ("MultiWorkerMirrored", [("worker 0", 0, 1, "each"), ("worker 1", 1, 1, "each")]),
    ("ParameterServer", [("worker 0", 0, 1, None), ("worker 1", 1, 1, None), ("server", 0.5, 0, "one")]),
)
_HIGH = 1.55  # between rows of processes


def strategies(alt):
    """Draw the processes of each strategy as frames, its devices as circles, its variables as squares."""
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.4, 2.6), layout="constrained")
        x = 0.0
        for title, processes in _STRATEGIES:
            x += _draw(axes, x, title, processes) + 0.55
        alone = {"linestyle": ""}
        keys = [
            Patch(facecolor="white", edgecolor=COLOURS[2], label="process"),
            Line2D([], [], marker="o", color=pale(COLOURS[5]), mec=COLOURS[0], ms=9, label="device", **alone),
            Line2D([], [], marker="s", color=pale(COLOURS[1]), mec=COLOURS[1], ms=8, label="variables", **alone),
            Line2D([], [], color=COLOURS[1], marker=r"$\leftrightarrow$", ms=12, label="what moves", **alone),
        ]
        figure.legend(handles=keys, loc="outside lower left", ncols=4)
        axes.set_xlim(-0.1, x - 0.45)
        axes.set_ylim(2 * _HIGH - 0.3, -0.75)
        axes.axis("off")
        show(figure, alt)


def _draw(axes, x, title, processes):
    """Draw one strategy with its left edge at `x`, and return its width."""
    with_server = any(devices == 0 for *_, devices, _ in processes)
    width = 2.9 if with_server else 1.95
    axes.text(x, -0.5, title, fontsize=8, ha="left", va="bottom")
    several, ends = len(processes) > 1, []
    for name, row, devices, variables in processes:
        left, wide = (x + 1.85, 1.0) if devices == 0 else (x, 1.3 if with_server else 1.8)
        top = row * _HIGH if several else 0.5 * _HIGH
        _frame(axes, left, top, wide)
        axes.text(left + 0.08, top - 0.02, name, fontsize=6.5, ha="left", va="bottom", color="0.35")
        ends.append((left, wide, top))
        _fill(axes, left, wide, top, devices, variables, several)
    if with_server:
        for left, wide, top in ends[:2]:
            _arrow(axes, (left + wide, top + 0.55), (ends[2][0], ends[2][2] + 0.55))
    elif several:
        left, wide, top = ends[0]
        _arrow(axes, (left + wide / 2, top + 1.1), (left + wide / 2, ends[1][2]))
    return width


def _fill(axes, left, wide, top, devices, variables, several):
    """Draw the devices and variables of a process."""
    middle = top + 0.55
    if variables == "one" and devices:
        _variables(axes, left + wide / 2, middle + 0.3)
        for i in range(2):
            at = left + wide * (0.25 + 0.5 * i), middle - 0.22
            _device(axes, *at)
            _arrow(axes, at, (left + wide / 2 + (0.12 if i else -0.12), middle + 0.2))
        return
    if variables == "one":
        _variables(axes, left + wide / 2, middle)
        return
    for i in range(devices):
        at = left + wide * (0.5 if devices == 1 else 0.25 + 0.5 * i)
        _device(axes, at, middle - (0.2 if variables else 0))
        if variables:
            _variables(axes, at, middle + 0.27, half=variables == "parts")
    if devices == 2:
        y = middle - 0.2 if variables == "parts" else middle + 0.27
        _arrow(axes, (left + wide * 0.36, y), (left + wide * 0.64, y))


def _frame(axes, x, y, wide):
    from matplotlib.patches import FancyBboxPatch

    look = {
        "boxstyle": "round,pad=0,rounding_size=0.12",
        "facecolor": "white",
        "edgecolor": COLOURS[2],
        "linewidth": 1.1,
    }
    axes.add_patch(FancyBboxPatch((x, y), wide, 1.1, **look))


def _device(axes, x, y):
    axes.plot(x, y, "o", markersize=13, color=pale(COLOURS[5]), markeredgecolor=COLOURS[0], zorder=3)


def _variables(axes, x, y, half=False):
    axes.plot(x, y, "s", markersize=6 if half else 10, color=pale(COLOURS[1]), markeredgecolor=COLOURS[1], zorder=4)


def _arrow(axes, begin, end):
    look = {"arrowstyle": "<->", "color": COLOURS[1], "linewidth": 1.1, "shrinkA": 2, "shrinkB": 2, "mutation_scale": 7}
    axes.annotate("", end, begin, arrowprops=look, zorder=5)


def distances(equal, others, allowed, prediction, alt, source="", placement=None):
    """Draw {way: largest difference from PyTorch} as points on a log axis: `equal` ways, and `others` meant to differ.

    `allowed` is the difference that assert_close allows a parameter near 0; `prediction` is the student's, or None.
    """
    height = 1.3 + 0.19 * (len(equal) + len(others))
    with new_figure("largest difference of a parameter", "", "After ten steps", height, source, placement) as (
        figure,
        axes,
    ):
        for values, colour, mark, label in (
            (equal, COLOURS[0], "o", "same algorithm"),
            (others, COLOURS[1], "s", "changed on purpose"),
        ):
            axes.plot(list(values.values()), list(values), mark, color=colour, label=label)
        axes.set_xscale("log")
        axes.axvline(allowed, color="0.4", linestyle="--", label="allowed near 0")
        if prediction:
            axes.axvline(prediction, color=COLOURS[2], linestyle=":", label="your prediction")
        axes.invert_yaxis()
        axes.legend(loc="upper right", fontsize=7)
        show(figure, alt)
