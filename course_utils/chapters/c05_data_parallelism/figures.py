"""Figures of chapter 05: three ways to split training over devices, and a data-parallel step: ideas."""

from ...plots.drawings import diagram, draw_part
from ...plots.passes import BACKWARD, FORWARD, arrow_keys, draw_arrow
from ...plots.style import COLOURS, HATCHES, STYLE, keys, pale, show

_DEVICES = range(4)
_WIDE, _PITCH = 8.0, 11.0  # a network's width; the distance between two networks
_TOPS, _HIGH = (2.0, 3.8, 5.6, 7.4), 1.0  # top edges and height of the four layers


def three_ways(alt):
    """Draw a network of four layers split by layers, inside layers and by data: what is held, what is sent."""
    import matplotlib.pyplot as plt

    ways = {
        "by layers": (_by_layers, "holds some of the layers", "at every cut, in both passes"),
        "inside layers": (_inside_layers, "holds a part of each layer", "during both passes: sums"),
        "by data": (_by_data, "holds the whole network", "once, at the end: gradients"),
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


def data_parallel_step(alt):
    """Draw a step of two replicas, from the batch to equal parameters."""
    boxes = {"batch": (0, 0.5, "batch\nx, y"), "sum": (4.9, 0.5, "sum\n$g_0 + g_1$")}
    arrows = []
    for i in range(2):
        boxes[f"part {i}"] = (1.5, 1 - i, f"part {i}")
        boxes[f"net {i}"] = (3.2, 1 - i, f"replica {i}: $w$\ngradient $g_{i}$")
        boxes[f"new {i}"] = (6.7, 1 - i, f"replica {i}:\n$w - \\eta\\,(g_0 + g_1)$")
        path = ("batch", f"part {i}", f"net {i}", "sum", f"new {i}")
        arrows += [(start, end, "") for start, end in zip(path, path[1:])]
    diagram(boxes, arrows, alt, height=1.8)


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
