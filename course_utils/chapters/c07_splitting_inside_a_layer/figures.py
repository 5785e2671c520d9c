"""Figures of chapter 07: layers split over devices, with a lane per device and the messages between lanes.

All are ideas, not measurements.
"""

from ...plots.drawings import draw_part
from ...plots.passes import arrow_keys, draw_arrow
from ...plots.style import COLOURS, HATCHES, STYLE, keys, pale, show

# gap between items; between lanes; space above a panel's first lane; space left of a lane
_GAP, _BETWEEN, _TITLE, _LABEL = 0.7, 2.5, 2.3, 3.3
_WIDE = 38  # minimal width
# Black, since colours stand for devices here; the dashes are short, so that an arrow between two lanes has some.
_PASSES = {"forward": {"color": "0.1", "linestyle": "-"}, "backward": {"color": "0.1", "linestyle": (0, (2.2, 1.6))}}
_BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 1}
_INPUT = ("$X$", 3, 3, None, "backward", 1, "all-reduce\nof ∂L/∂X")


def columns_and_rows(alt):
    """Draw Y = X A over two devices, by columns and by rows: what each holds, and the sum that each needs."""
    summed = [("summand of $Y$", 3, 6, "partial", "forward"), "→", ("$Y$", 3, 6, None)]
    lanes({
        "by columns": [_INPUT, "·", ("$A$", 3, 6, "columns"), "=", ("$Y$", 3, 6, "columns")],
        "by rows": [("$X$", 3, 3, "columns"), "·", ("$A$", 3, 6, "rows"), "=", *summed],
    }, alt)  # fmt: skip


def pair_and_attention(alt):
    """Draw two layers on two devices, by columns and then by rows, and below it attention, by heads."""
    wide, tall = ("$A$", 3, 6, "columns"), ("$C$", 6, 3, "rows")
    summed = [("summand of $Y$", 3, 3, "partial", "forward"), "→", ("$Y$", 3, 3, None)]
    heads = [(f"$W_{part}$", 3, 4, "columns", "", 4) for part in "QKV"]
    lanes({
        "an MLP: columns, then rows": [
            _INPUT, "·", wide, "ReLU\n→", ("$H$", 3, 6, "columns"), "·", tall, "=", *summed],
        "attention with four heads, two on each device": [
            _INPUT, "·", *heads, "each\nhead\n→", ("heads", 3, 4, "columns", "", 4), "·",
            ("$W_O$", 4, 3, "rows"), "=", *summed],
    }, alt)  # fmt: skip


def split_tokens(alt):
    """Draw a pair whose input and output are split by rows, which are tokens, and the messages between the devices."""
    lanes({
        "tokens are rows; between two pairs, each device holds some of them": [
            ("$X$", 4, 4, "rows"), "Layer-\nNorm\n→", ("$Z$", 4, 4, "rows", "forward", 1, "all-\ngather"), "→",
            ("$Z$", 4, 4, None, "backward", 1, "reduce-\nscatter"), "the pair\n→",
            ("summand of $Y$", 4, 4, "partial", "forward", 1, "reduce-\nscatter"), "→",
            ("$Y$", 4, 4, "rows", "backward", 1, "all-\ngather")],
    }, alt)  # fmt: skip


def transformer_layer(alt):
    """Draw a transformer layer as a row of boxes: what is split, what is whole on every device, and the all-reduces."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Circle, Patch

    boxes = {2.2: ("Layer-\nNorm", False), 5.6: ("attention", True), 11: ("Layer-\nNorm", False), 14.4: ("MLP", True)}
    whole, split = {"facecolor": "0.92"}, {"facecolor": pale(COLOURS[0]), "hatch": HATCHES[0]}
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 2.0), layout="constrained")
        draw_arrow(axes, (0.3, 0), (18.6, 0), {"color": "0.4"})
        for left, (name, is_split) in boxes.items():
            draw_part(axes, left - 1, -0.8, 2, 1.6, edgecolor="white", zorder=3, **(split if is_split else whole))
            axes.text(left, 0, name, ha="center", va="center", fontsize=8, zorder=5, bbox=_BEHIND if is_split else None)
        for begin, add in ((0.6, 8.3), (9.2, 17.1)):
            axes.plot([begin, begin, add, add], [0, -1.7, -1.7, -0.35], color="0.4", linewidth=0.9)
            axes.add_patch(Circle((add, 0), 0.32, facecolor="white", edgecolor="0.4", zorder=3))
            axes.text(add, 0, "+", ha="center", va="center", fontsize=9, zorder=5)
        for place, kind in ((3.9, "backward"), (7.2, "forward"), (12.7, "backward"), (16.0, "forward")):
            axes.plot([place, place], [-0.55, 1.3], zorder=4, **_PASSES[kind], linewidth=1.6)
            axes.text(place, 1.4, "all-reduce", ha="center", va="top", fontsize=7.5)
        axes.text(0, 0, "$X$", ha="center", va="center", fontsize=10)
        axes.text(19, 0, "$Y$", ha="center", va="center", fontsize=10)
        handles = [Patch(edgecolor="0.5", label="whole on every device", **whole),
                   Patch(edgecolor="white", label="split over the devices", **split)]  # fmt: skip
        handles += arrow_keys("sum in the {} pass", _PASSES)
        figure.legend(handles=handles, loc="outside lower left", ncols=4, columnspacing=1.2, handlelength=1.6,
                      fontsize=8)  # fmt: skip
        axes.set_xlim(-0.5, 19.5)
        axes.set_ylim(2.1, -2)
        axes.axis("off")
        show(figure, alt)


def channels(alt, num_devices=4):
    """Draw a convolution by output channels: every device slides its kernels over all of x, for its channels of y."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 3.4), layout="constrained")
        maps = {"facecolor": "0.92"}
        for i in reversed(range(8)):  # the input's channels, one behind the other
            draw_part(axes, 0.25 * i, 6.2 - 0.25 * i, 4, 4, **maps)
        _draw_window(axes, 0.8, 7.6)
        told = "x: 8 channels,\non every device\n\nbackward: all-reduce\nof ∂L/∂x"
        axes.text(2.5, 10.8, told, ha="center", va="top", fontsize=8)
        for device in range(num_devices):
            top, look = 0.6 + 4.2 * device, {"facecolor": pale(COLOURS[device]), "hatch": HATCHES[device]}
            for i in reversed(range(4)):
                draw_part(axes, 10 + 0.3 * i, top + 0.9 - 0.3 * i, 1.8, 1.8, edgecolor="white", **look)
                draw_part(axes, 19 + 0.3 * i, top + 0.9 - 0.3 * i, 2.6, 2.6, edgecolor="white", **look)
            axes.add_patch(Rectangle((19.9, top + 1.9), 0.45, 0.45, facecolor="black"))
            for i in (1, 2):
                axes.plot([10, 11.8], [top + 0.9 + 0.6 * i] * 2, color="0.4", linewidth=0.6)
                axes.plot([10 + 0.6 * i] * 2, [top + 0.9, top + 2.7], color="0.4", linewidth=0.6)
            begin = 6.2, 7.6
            draw_arrow(axes, begin, (9.7, top + 1.8), {"color": "0.4"})
            draw_arrow(axes, (13, top + 1.8), (18.7, top + 1.8), {"color": "0.4"})
            axes.text(15.8, top + 1.6, "slides over x", ha="center", va="bottom", fontsize=7.5)
            axes.text(22.8, top + 1.8, f"device {device}: 16 channels", va="center", fontsize=8)
        axes.text(11.2, 0.1, "16 × 8 kernels\neach, 3 × 3", ha="center", va="bottom", fontsize=8)
        axes.text(20.8, 0.1, "y: 64 channels", ha="center", va="bottom", fontsize=8)
        axes.set_xlim(-0.3, 28)
        axes.set_ylim(17.4, -1.6)
        axes.set_aspect("equal")
        axes.axis("off")
        show(figure, alt)


def _draw_window(axes, left, top):
    """Draw the 3 × 3 numbers of a map that a kernel multiplies at one position."""
    from matplotlib.patches import Rectangle

    for i in range(3):
        for j in range(3):
            axes.add_patch(Rectangle((left + 0.45 * i, top + 0.45 * j), 0.45, 0.45, fill=False, linewidth=0.8))


def lanes(panels, alt, num_devices=2):
    """Draw {title: items} in one panel each, with a lane for every device.

    An item is text, or a matrix (name, rows, columns, split[, pass[, number of blocks[, message]]]), sized in units of
    the drawing and split as for `parts`. A device's shard is filled, the rest of the matrix an empty outline. `pass`
    is "forward" or "backward": in it, the devices exchange the matrix by an all-reduce, or by `message`; an arrow
    between the lanes shows it.
    """
    import matplotlib.pyplot as plt

    heights = [_TITLE + num_devices * (_lane(items) + _BETWEEN) for items in panels.values()]
    wide = max(_WIDE, *(_LABEL + sum(_width(item) + _GAP for item in items) for items in panels.values()))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 0.35 + sum(heights) * 6.7 / wide), layout="constrained")
        top = 0
        for (title, items), height in zip(panels.items(), heights):
            axes.text(0, top + 0.4, title, fontsize=9, fontweight="bold", va="center")
            for device in range(num_devices):
                middle = top + _TITLE + device * (_lane(items) + _BETWEEN) + _lane(items) / 2
                axes.text(0, middle, f"device {device}", fontsize=8, va="center", color="0.3")
                _draw_lane(axes, items, _LABEL, middle, device, num_devices)
            top += height
        figure.legend(handles=_legend(num_devices), loc="outside lower left", ncols=num_devices + 3,
                      columnspacing=1.2, handlelength=1.6, fontsize=8)  # fmt: skip
        axes.set_xlim(-0.1, wide)
        axes.set_ylim(top - 1.8, -0.4)
        axes.axis("off")
        show(figure, alt)


def _legend(num_devices):
    from matplotlib.patches import Patch

    handles = keys([f"device {i}" for i in range(num_devices)], pale)
    handles.append(Patch(facecolor="0.92", edgecolor="0.5", label="on every device"))
    return handles + arrow_keys("sent in the {} pass", _PASSES)


def _lane(items):
    return max(item[1] for item in items if not isinstance(item, str))


def _width(item):
    return 0.42 * max(map(len, item.split("\n"))) if isinstance(item, str) else item[2]


def _draw_lane(axes, items, x, middle, device, num_devices):
    for item in items:
        if isinstance(item, str):
            axes.text(
                x + _width(item) / 2, middle, item, ha="center", va="center", fontsize=10 if len(item) == 1 else 7.5
            )
        else:
            _draw_matrix(axes, x, middle, device, num_devices, *item)
            if item[4:] and item[4] and device < num_devices - 1:
                end = middle + _lane(items) + _BETWEEN - item[1] / 2 - (0.9 if item[0] else 0)
                middles = (x + item[2] / 2, middle + item[1] / 2 + 0.1), (x + item[2] / 2, end)
                draw_arrow(axes, *middles, _PASSES[item[4]], linewidth=1.5, heads="<->")
                axes.text(
                    x + item[2] / 2 + 0.3,
                    (middle + item[1] / 2 + end) / 2,
                    item[6] if item[6:] else "all-reduce",
                    fontsize=7.5,
                    va="center",
                    color=_PASSES[item[4]]["color"],
                )
        x += _width(item) + _GAP


def _draw_matrix(axes, x, middle, device, num_devices, name, rows, columns, split, summed="", num_blocks=1, message=""):
    from matplotlib.patches import Rectangle

    top = middle - rows / 2
    filled = [(0, 0, columns, rows, device)] if split == "partial" else parts(rows, columns, split, num_devices, 0)
    for left, down, wide, high, owner in filled:
        if owner in (device, None):
            look = (
                {"facecolor": pale(COLOURS[device]), "edgecolor": "white", "hatch": HATCHES[device]}
                if owner is not None
                else {"facecolor": "0.92"}
            )
            axes.add_patch(Rectangle((x + left, top + down), wide, high, linewidth=0, **look))
    axes.add_patch(Rectangle((x, top), columns, rows, fill=False, edgecolor="0.4", linewidth=0.8))
    for block in range(1, num_blocks):
        axes.plot([x + columns * block / num_blocks] * 2, [top, top + rows], color="0.4", linewidth=0.8)
    axes.text(x + columns / 2, top - 0.12, name, ha="center", va="bottom", fontsize=8)


def parts(num_rows, num_columns, split, num_devices, depth):
    """Return one matrix's rectangles (left, down, width, height, device or None), in drawing order.

    `split` is None (every device holds all of it), "columns" or "rows" (a part each), or "partial" (each holds a
    partial sum of full size; the sheets are offset by `depth`).
    """
    if split is None:
        return [(0, 0, num_columns, num_rows, None)]
    if split == "columns":
        wide = num_columns / num_devices
        return [(i * wide, 0, wide, num_rows, i) for i in range(num_devices)]
    if split == "rows":
        high = num_rows / num_devices
        return [(0, i * high, num_columns, high, i) for i in range(num_devices)]
    return [(depth * i, depth * (num_devices - 1 - i), num_columns, num_rows, i) for i in reversed(range(num_devices))]
