"""Figures of chapter 07: layers split over devices, with a lane per device and the sums between lanes.

All but `winners` are ideas, not measurements.
"""

from ...plots.drawings import draw_part
from ...plots.passes import PASSES, arrow_keys, draw_arrow
from ...plots.style import COLOURS, HATCHES, STYLE, keys, new_figure, pale, show

# gap between items; between lanes; space above a panel's first lane; space left of a lane
_GAP, _BETWEEN, _TITLE, _LABEL = 0.7, 2.5, 2.3, 3.3
_WIDE = 38  # minimal width


def columns_and_rows(alt):
    """Draw Y = X A over two devices, by columns and by rows: what each holds, and the sum that each needs."""
    summed = [("summand of $Y$", 3, 6, "partial", "forward"), "→", ("$Y$", 3, 6, None)]
    lanes({
        "by columns": [("$X$", 3, 3, None, "backward"), "·", ("$A$", 3, 6, "columns"), "=", ("$Y$", 3, 6, "columns")],
        "by rows": [("$X$", 3, 3, "columns"), "·", ("$A$", 3, 6, "rows"), "=", *summed],
    }, alt)  # fmt: skip


def pair_and_attention(alt):
    """Draw two layers on two devices, by columns and then by rows, and below it attention, by heads."""
    wide, tall = ("$A$", 3, 6, "columns"), ("$C$", 6, 3, "rows")
    summed = [("summand of $Y$", 3, 3, "partial", "forward"), "→", ("$Y$", 3, 3, None)]
    start, heads = ("$X$", 3, 3, None, "backward"), [(f"$W_{part}$", 3, 4, "columns", "", 4) for part in "QKV"]
    lanes({
        "an MLP: columns, then rows": [
            start, "·", wide, "=", ("$H$", 3, 6, "columns"), "ReLU", "·", tall, "=", *summed],
        "attention with four heads, two on each device": [
            start, "·", *heads, "each\nhead", ("heads", 3, 4, "columns", "", 4), "·",
            ("$W_O$", 4, 3, "rows"), "=", *summed],
    }, alt)  # fmt: skip


def lanes(panels, alt, num_devices=2):
    """Draw {title: items} in one panel each, with a lane for every device.

    An item is text, or a matrix (name, rows, columns, split[, sum[, number of blocks]]), sized in units of the drawing
    and split as for `matrices`. A device's shard is filled, the rest of the matrix an empty outline. `sum` is the pass,
    "forward" or "backward", in which the devices' versions are summed; an arrow between the lanes shows it.
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
    return handles + arrow_keys("sum in the {} pass")


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
                draw_arrow(axes, *middles, PASSES[item[4]], linewidth=1.5, heads="<->")
                axes.text(
                    x + item[2] / 2 + 0.3,
                    (middle + item[1] / 2 + end) / 2,
                    "all-reduce",
                    fontsize=7.5,
                    va="center",
                    color=PASSES[item[4]]["color"],
                )
        x += _width(item) + _GAP


def _draw_matrix(axes, x, middle, device, num_devices, name, rows, columns, split, summed="", num_blocks=1):
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


def winners(x, y, values, xlabel, ylabel, alt, title="", *, source):
    """Draw a map: each cell (x[i], y[j]) shows the method with the smallest `values[method][j][i]`.

    Colour and hatch stand for the method. `source` says where the values come from.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Rectangle

    names = list(values)
    best = [
        [min(range(len(names)), key=lambda k: values[names[k]][j][i]) for i in range(len(x))] for j in range(len(y))
    ]
    with new_figure(xlabel, ylabel, title, height=3.2, source=source) as (figure, axes):
        axes.pcolormesh(
            best,
            cmap=ListedColormap([pale(COLOURS[k % 7]) for k in range(len(names))]),
            vmin=0,
            vmax=max(1, len(names) - 1),
        )
        for j, row in enumerate(best):
            for i, k in enumerate(row):
                axes.add_patch(
                    Rectangle((i, j), 1, 1, fill=False, hatch=HATCHES[k % 7], edgecolor="white", linewidth=0)
                )
        figure.legend(handles=keys(names, pale), loc="outside upper right", ncols=min(3, len(names)))
        axes.set_xticks(
            [i + 0.5 for i in range(len(x))], [f"{value:g}" for value in x], rotation=45 if len(x) > 10 else 0
        )
        axes.set_yticks([j + 0.5 for j in range(len(y))], [f"{value:g}" for value in y])
        axes.grid(visible=False)
        show(figure, alt)


def matrices(rows, alt, title="", num_devices=2):
    """Draw matrices and which device holds which part: an idea, not a measurement.

    A row is a list of operators, strings such as "·" and "=", and matrices (name, number of rows, number of columns,
    split), sized in units of the drawing. `split` is None (every device holds all of it), "columns" or "rows" (a part
    each), or "partial" (each holds a partial sum of full size).
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    # gap between items; offset between sheets of partial sums; space between rows
    gap, depth, between = 0.9, 0.45, 1.4
    widths, heights = zip(*(_extent(row, gap, depth * (num_devices - 1)) for row in rows))
    wide, high = max(widths) + 0.4, sum(heights) + between * len(rows) + 0.3
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 0.7 + high * min(0.3, 6.7 / wide)), layout="constrained")
        y = 0
        for row, height in zip(rows, heights):
            x, middle = 0, y + height / 2
            for item in row:
                if isinstance(item, str):
                    axes.text(x + 0.16 * len(item), middle, item, ha="center", va="center", fontsize=10)
                    x += 0.32 * len(item) + gap
                    continue
                name, num_rows, num_columns, split = item
                behind = depth * (num_devices - 1) if split == "partial" else 0
                top = middle - (num_rows + behind) / 2
                for left, down, part_wide, part_high, device in parts(num_rows, num_columns, split, num_devices, depth):
                    look = {"facecolor": "0.92"}
                    if device is not None:
                        look = {
                            "facecolor": pale(COLOURS[device % 7]),
                            "edgecolor": "white",
                            "hatch": HATCHES[device % 7],
                        }
                    draw_part(axes, x + left, top + down, part_wide, part_high, **look)
                axes.text(x + (num_columns + behind) / 2, top - 0.15, name, ha="center", va="bottom", fontsize=8)
                x += num_columns + behind + gap
            y += height + between
        devices = keys([f"device {i}" for i in range(num_devices)], pale)
        everywhere = Patch(facecolor="0.92", edgecolor="0.5", label="on every device")
        figure.legend(handles=[*devices, everywhere], loc="outside lower left", ncols=num_devices + 1)
        axes.set_xlim(-0.2, wide - 0.2)
        axes.set_ylim(high - between, -between)
        axes.set_aspect("equal")
        axes.set_title(title)
        axes.axis("off")
        show(figure, alt)


def _extent(row, gap, behind):
    """Return width and height of a row of `matrices`; partial sums take `behind` more in each."""
    items = [
        (0.32 * len(item), 0)
        if isinstance(item, str)
        else (item[2] + behind * (item[3] == "partial"), item[1] + behind * (item[3] == "partial"))
        for item in row
    ]
    return sum(width for width, _ in items) + gap * (len(row) - 1), max(height for _, height in items)


def parts(num_rows, num_columns, split, num_devices, depth):
    """Return one matrix's rectangles (left, down, width, height, device or None), in drawing order."""
    if split is None:
        return [(0, 0, num_columns, num_rows, None)]
    if split == "columns":
        wide = num_columns / num_devices
        return [(i * wide, 0, wide, num_rows, i) for i in range(num_devices)]
    if split == "rows":
        high = num_rows / num_devices
        return [(0, i * high, num_columns, high, i) for i in range(num_devices)]
    return [(depth * i, depth * (num_devices - 1 - i), num_columns, num_rows, i) for i in reversed(range(num_devices))]
