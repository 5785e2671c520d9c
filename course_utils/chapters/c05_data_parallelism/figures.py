"""Figures of chapter 05: three ways to split training, a data-parallel step, and overlap, as an idea and measured."""

from ...plots.drawings import draw_part
from ...plots.passes import BACKWARD, FORWARD, arrow_keys, draw_arrow
from ...plots.style import COLOURS, HATCHES, STYLE, keys, new_figure, pale, show

_DEVICES = range(4)
_WIDE, _PITCH = 8.0, 11.0  # a network's width; the distance between two networks
_TOPS, _HIGH = (2.0, 3.8, 5.6, 7.4), 1.0  # top edges and height of the four layers


def three_ways(alt):
    """Draw a network of four layers split by layers, inside layers and by data: what is held, what is sent."""
    import matplotlib.pyplot as plt

    ways = {
        "by layers": (_by_layers, "holds some of the layers", "at every cut, in both passes"),
        "inside layers": (_inside_layers, "holds a part of each layer", "during both passes: sums"),
        "by data": (_by_data, "holds the whole network", "once a step: gradients"),
    }
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 3.5), layout="constrained")
        for i, (name, (draw, holds, sends)) in enumerate(ways.items()):
            left = i * _PITCH
            axes.text(left, -0.5, name, fontsize=9.5, fontweight="bold", va="center")
            _draw_batch(axes, left, parts=4 if name == "by data" else 1)
            draw(axes, left)
            for y, text in ((10.3, f"each device {holds}"), (11.1, f"sent {sends}")):
                axes.text(left + _WIDE / 2, y, text, fontsize=7.5, ha="center", va="center")
        handles = keys([f"device {device}" for device in _DEVICES], pale)
        figure.legend(
            handles=handles + arrow_keys(), loc="outside lower center", ncols=6, columnspacing=1.2, handlelength=1.6
        )
        axes.set_xlim(-1.2, 2 * _PITCH + _WIDE + 1.2)
        axes.set_ylim(11.6, -1.0)
        axes.axis("off")
        show(figure, alt)


def data_parallel_step(alt, library=False):
    """Draw a step of two replicas, from the batch to the new parameters; with `library`, nn.DataParallel's below it."""
    import matplotlib.pyplot as plt

    ours = _OURS if library else {phase: texts for phase, texts in _OURS.items() if any(texts)}
    panels = {"our step: replicas stay, each updates itself": (ours, _OUR_MESSAGES)}
    if library:
        panels["nn.DataParallel: replicas live for one step"] = _LIBRARY, _LIBRARY_MESSAGES
    with plt.rc_context(STYLE):
        figure, all_axes = plt.subplots(len(panels), figsize=(6.8, 1.9 * len(panels)), layout="constrained")
        for axes, (title, (texts, messages)) in zip(all_axes if library else [all_axes], panels.items()):
            if library:
                axes.set_title(title, fontsize=9, fontweight="bold")
            _draw_lanes(axes, texts, messages)
        show(figure, alt)


# {phase: texts on device 0 and on device 1}; messages from (phase, device) to (phase, device).
_OURS = {
    "": ("batch\nreplica 0: $w$", "replica 1: $w$"),
    "scatter": ("part 0", "part 1"),
    "apply": ("forward,\nloss", "forward,\nloss"),
    " ": ("", ""),  # where the library's step has a phase more
    "backward": ("gradient\n$g_0$", "gradient\n$g_1$"),
    "all-reduce": ("$g_0 + g_1$", "$g_0 + g_1$"),
    "update": ("new $w$", "new $w$"),
}
_OUR_MESSAGES = (("", 0, "scatter", 1), ("backward", 1, "all-reduce", 0), ("all-reduce", 0, "all-reduce", 1))
_LIBRARY = {
    "": ("batch\nmodel: $w$", ""),
    "scatter,\nreplicate": ("part 0\nreplica 0", "part 1\nreplica 1"),
    "apply": ("forward", "forward"),
    "gather": ("all outputs,\nloss", ""),
    "backward": ("gradient\n$g_0$", "gradient\n$g_1$"),
    "reduce": ("$g_0 + g_1$", ""),
    "update": ("new $w$", ""),
}
_LIBRARY_MESSAGES = (
    ("", 0, "scatter,\nreplicate", 1),
    ("apply", 1, "gather", 0),
    ("gather", 0, "backward", 1),
    ("backward", 1, "reduce", 0),
)


def _draw_lanes(axes, texts, messages):
    """Draw boxes in a lane per device, joined along the lanes, and messages between the lanes."""
    for i, (phase, of_devices) in enumerate(texts.items()):
        axes.text(i, -0.5, phase, ha="center", va="bottom", fontsize=8, fontstyle="italic", color="0.35")
        for device, text in enumerate(of_devices):
            if text:
                look = {"boxstyle": "round,pad=0.35", "facecolor": pale(COLOURS[device]), "edgecolor": "0.5"}
                axes.text(i, device, text, ha="center", va="center", fontsize=7.5, zorder=3, bbox=look)
    for device in range(2):
        held = [i for i, of_devices in enumerate(texts.values()) if of_devices[device]]
        axes.text(-0.62, device, f"device {device}", ha="right", va="center", fontsize=8)
        axes.plot((held[0], held[-1]), (device, device), color="0.6", linewidth=1.0, zorder=1)
    column = {phase: i for i, phase in enumerate(texts)}
    for start, source, end, target in messages:
        shrink = {"shrinkA": 15, "shrinkB": 15 if start == end else 19, "color": COLOURS[1], "linewidth": 1.4}
        axes.annotate(
            "", (column[end], target), (column[start], source), arrowprops={"arrowstyle": "->", **shrink}, zorder=4
        )
    axes.set_xlim(-1.25, 6.5)
    axes.set_ylim(1.5, -1.05)
    axes.axis("off")


def overlap(alt):
    """Draw a backward pass of four layers and the sums of their gradients: all at the end, and as soon as ready."""
    import matplotlib.pyplot as plt

    backward, sums = {3: 1.0, 2: 1.0, 1: 2.0, 0: 3.0}, {3: 1.6, 2: 1.2, 1: 1.2, 0: 1.1}
    ready, at = {}, 0.0
    for layer, spent in backward.items():
        ready[layer] = at = at + spent
    ends = []
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 2.5), layout="constrained")
        for row, begins in ((0, dict.fromkeys(ready, at)), (2.6, ready)):
            free = 0.0
            for layer, spent in backward.items():
                _draw_span(axes, row, ready[layer] - spent, spent, layer)
                free = max(free, begins[layer])
                _draw_span(axes, row + 1, free, sums[layer], layer)
                free += sums[layer]
            ends.append(free)
            axes.plot((free, free), (row - 0.4, row + 1.4), color="0.2", linestyle="--", linewidth=1.2)
        axes.text(ends[1] + 0.1, 3.1, "done", va="center", fontsize=8)
        axes.text(ends[0] + 0.1, 0.5, "done", va="center", fontsize=8)
        axes.set_yticks(
            (0, 1, 2.6, 3.6), ("backward pass", "sums, all at the end", "backward pass", "sums, overlapped")
        )
        axes.set_ylim(4.1, -0.5)
        axes.set_xlim(0, ends[0] + 1.2)
        axes.set_xticks([])
        axes.set_xlabel("time →")
        axes.grid(visible=False)
        show(figure, alt)


def ready_times(times, alt, title="", *, placement):
    """Draw `overlapped.times_ms`: a row for each parameter, with its gradients and the span of their sum."""
    look = {"linestyle": "", "markersize": 6, "fillstyle": "none"}
    # On GPUs Python sees only when work is asked for.
    on_gpus = placement[0].type == "cuda"
    complete_as, of_sum = ("asked for", "asking for the sum") if on_gpus else ("complete", "sum")
    xlabel = f"ms since the first gradient was {complete_as}"
    with new_figure(xlabel, "", title, 3.4, placement=placement) as (figure, axes):
        rows = range(len(times))
        for replica in range(2):
            marks = {"marker": "ov"[replica], "color": COLOURS[replica]}
            complete = [of_replicas[replica] for of_replicas, *_ in times.values()]
            axes.plot(complete, rows, label=f"gradient {complete_as} on device {replica}", **marks, **look)
        begins, ends = zip(*(span for _, *span in times.values()))
        axes.hlines(rows, begins, ends, color="k", linewidth=1.2)
        for at, label in ((begins, f"{of_sum} begins and ends"), (ends, None)):
            axes.plot(at, rows, "k|", markersize=8, markeredgewidth=1.6, label=label)
        last = max(max(of_replicas) for of_replicas, *_ in times.values())
        axes.axvline(last, color="0.2", linestyle="--", linewidth=1.2, label=f"last gradient {complete_as}")
        axes.set_yticks(rows, list(times))
        axes.invert_yaxis()
        figure.legend(loc="outside upper right", ncols=2)
        show(figure, alt)


def _draw_span(axes, row, begin, length, layer):
    look = {"color": pale(COLOURS[layer]), "hatch": HATCHES[layer], "edgecolor": "white", "linewidth": 0.8}
    axes.barh(row, length, 0.8, begin, **look)
    axes.text(begin + length / 2, row, f"layer {layer}", ha="center", va="center", fontsize=7.5)


def _by_layers(axes, left):
    for device, top in enumerate(_TOPS):
        _draw_part(axes, left, top, _WIDE, device)
        axes.text(left + _WIDE / 2, top + _HIGH / 2, f"layer {device}", fontsize=7.5, ha="center", va="center")
    for top in _TOPS[1:]:
        draw_arrow(axes, (left + 3, top - 0.75), (left + 3, top - 0.05), FORWARD)
        draw_arrow(axes, (left + 5, top - 0.05), (left + 5, top - 0.75), BACKWARD)


def _inside_layers(axes, left):
    wide = _WIDE / len(_DEVICES)
    for top in _TOPS:
        for device in _DEVICES:
            _draw_part(axes, left + device * wide, top, wide, device)
    _draw_sum(axes, left, 5.03, FORWARD)  # forward, after the first pair of layers
    _draw_sum(axes, left, 8.8, FORWARD)  # forward, after the second
    _draw_sum(axes, left, 5.36, BACKWARD)  # backward, between the pairs; the images need no gradient


def _by_data(axes, left):
    wide = _WIDE / len(_DEVICES)
    for device in _DEVICES:
        for top in _TOPS:
            _draw_part(axes, left + device * wide + 0.2, top, wide - 0.4, device)
    _draw_sum(axes, left, 8.8, BACKWARD)


def _draw_batch(axes, left, parts):
    from matplotlib.patches import Rectangle

    wide = _WIDE / parts
    for i in range(parts):
        inset = 0.2 if parts > 1 else 0
        axes.add_patch(
            Rectangle(
                (left + i * wide + inset, 0.2), wide - 2 * inset, 0.8, facecolor="white", edgecolor="0.4", linewidth=0.8
            )
        )
        axes.text(left + (i + 0.5) * wide, 0.6, "batch" if parts == 1 else "¼", fontsize=7.5, ha="center", va="center")
        draw_arrow(axes, (left + (i + 0.5) * wide, 1.1), (left + (i + 0.5) * wide, 1.9), FORWARD)


def _draw_part(axes, left, top, wide, device):
    draw_part(axes, left, top, wide, _HIGH, facecolor=pale(COLOURS[device]), hatch=HATCHES[device], edgecolor="white")


def _draw_sum(axes, left, y, look):
    """Draw an exchange between all devices: a double-headed arrow over the whole width."""
    draw_arrow(axes, (left - 0.3, y), (left + _WIDE + 0.3, y), look, linewidth=1.4, heads="<->")
