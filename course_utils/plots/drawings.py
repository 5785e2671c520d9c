"""Ideas and maps: boxes with arrows, matrices in parts, and which thread touches which element."""

from .style import COLOURS, HATCHES, STYLE, keys, pale, show


def diagram(boxes, arrows, alt, height=2.6):
    """Draw an idea, not a measurement: boxes {name: (x, y, text)}, arrows [(from name, to name, text)].

    Arrows run from centre to centre behind the boxes; "<->" at the head of an arrow's text gives it two heads. A fourth
    entry of an arrow is its width in points.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, height), layout="constrained")
        axes.axis("off")
        patches = {}
        for name, (x, y, text) in boxes.items():
            look = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": COLOURS[0], "linewidth": 1.2}
            patches[name] = axes.text(x, y, text, ha="center", va="center", bbox=look, zorder=3, fontsize=8.5)
        for start, end, text, *width in arrows:
            (x0, y0, _), (x1, y1, _) = boxes[start], boxes[end]
            heads = "<->" if text.startswith("<->") else "->"
            look = {
                "arrowstyle": heads,
                "color": COLOURS[1],
                "linewidth": (width or [1.2])[0],
                "shrinkA": 0,
                "shrinkB": 0,
            }
            look |= {"patchA": patches[start].get_bbox_patch(), "patchB": patches[end].get_bbox_patch()}
            axes.annotate("", (x1, y1), (x0, y0), arrowprops=look)
            place, where = ((x0 + x1) / 2, (y0 + y1) / 2), "left" if x0 <= x1 else "right"
            offset = (3 + look["linewidth"]) * (1 if x0 <= x1 else -1), 0
            if y0 == y1:
                where, offset = "center", (0, 4)
            axes.annotate(
                text.removeprefix("<->"), place, offset, textcoords="offset points", ha=where, va="bottom", fontsize=8
            )
        xs, ys = [x for x, _, _ in boxes.values()], [y for _, y, _ in boxes.values()]
        axes.set_xlim(min(xs) - 0.6, max(xs) + 0.6)
        axes.set_ylim(min(ys) - 0.5, max(ys) + 0.5)
        show(figure, alt)


def matrices(rows, alt, title="", num_devices=2):
    """Draw matrices and who holds which part: an idea, not a measurement.

    Each row is a list of operators, strings like "·" and "=", and of matrices (name, number of rows, number of columns,
    split); their sizes are in units of the drawing. split is None (every device holds all of it), "columns" or "rows"
    (a part each), or "partial" (each holds a summand of full size).
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    gap, depth, between = 0.9, 0.45, 1.4  # between items; between sheets of partial sums; between rows
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
    """Width and height of a row of `matrices`; `behind` is what partial sums take more."""
    items = [
        (0.32 * len(item), 0)
        if isinstance(item, str)
        else (item[2] + behind * (item[3] == "partial"), item[1] + behind * (item[3] == "partial"))
        for item in row
    ]
    return sum(width for width, _ in items) + gap * (len(row) - 1), max(height for _, height in items)


def draw_part(axes, left, top, wide, high, **look):
    """Draw a rectangle that somebody holds, filled as `look` says, and its outline."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((left, top), wide, high, linewidth=0, **look))
    axes.add_patch(Rectangle((left, top), wide, high, fill=False, edgecolor="0.4", linewidth=0.8))


def parts(num_rows, num_columns, split, num_devices, depth):
    """(left, down, width, height, device or None) of the rectangles of one matrix, those behind first."""
    if split is None:
        return [(0, 0, num_columns, num_rows, None)]
    if split == "columns":
        wide = num_columns / num_devices
        return [(i * wide, 0, wide, num_rows, i) for i in range(num_devices)]
    if split == "rows":
        high = num_rows / num_devices
        return [(0, i * high, num_columns, high, i) for i in range(num_devices)]
    return [(depth * i, depth * (num_devices - 1 - i), num_columns, num_rows, i) for i in reversed(range(num_devices))]


def thread_map(touches, alt, title="", per_row=16):
    """Draw which thread touches which element, {element: [(block, thread, turn), …]}; ints, or tuples in 2-D.

    A box is an element, its index above it. Colour and "b" stand for the block, "t" for the thread, hatches for the
    turn, which counts a thread's elements from 0. A box without a thread is dashed; one with several has a thick frame
    and says how many. Of more than 64 elements the first 64 are drawn, and the figure says so.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    shown = list(touches.items())[:64]
    everyone = [who for _, threads in shown for who in threads]
    blocks, turns = (sorted({who[i] for who in everyone}) for i in (0, 2))
    shade = {block: pale(COLOURS[i % 7]) for i, block in enumerate(blocks)}
    hatches = {turn: HATCHES[i % 7] for i, turn in enumerate(turns)}
    places = [element if isinstance(element, tuple) else divmod(element, per_row) for element, _ in shown]
    num_rows, num_columns = (max(sizes) + 1 for sizes in zip((0, 0), *places))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 0.9 + 0.62 * num_rows), layout="constrained")
        for (element, threads), (row, column) in zip(shown, places):
            look = {"facecolor": "white", "edgecolor": "0.6", "linestyle": "--"}
            words = "–"
            if threads:
                block, thread, turn = threads[-1]
                look = {"facecolor": shade[block], "edgecolor": "white", "hatch": hatches[turn], "linewidth": 0}
                words = f"b{_index(block)}\nt{_index(thread)}"
            axes.add_patch(Rectangle((column, row), 0.92, 0.66, **look))
            if len(threads) > 1:
                axes.add_patch(Rectangle((column, row), 0.92, 0.66, fill=False, edgecolor="black", linewidth=2))
                words += f"\n×{len(threads)}"
            axes.text(column + 0.46, row + 0.35, words, ha="center", va="center", fontsize=7, linespacing=1.15)
            axes.text(column + 0.46, row - 0.03, _index(element), ha="center", va="bottom", fontsize=6, color="0.4")
        # Every seventh block has the same colour, every seventh turn the same hatch.
        patches = [
            Patch(facecolor=shade[block], label=f"block {_few(blocks[i::7])}") for i, block in enumerate(blocks[:7])
        ]
        for i, turn in enumerate(turns[:7]):
            patches.append(
                Patch(facecolor="0.8", edgecolor="white", hatch=hatches[turn], label=f"turn {_few(turns[i::7])}")
            )
        axes.legend(handles=patches, loc="upper left", bbox_to_anchor=(1, 1), handleheight=1.2)
        if len(touches) > len(shown):
            axes.text(0, num_rows, f"the first {len(shown)} of {len(touches)} elements", fontsize=7, va="top")
        axes.set_xlim(0, max(num_columns, per_row))
        axes.set_ylim(num_rows + (0.1 if len(touches) > len(shown) else -0.3), -0.35)
        axes.set_title(title)
        axes.axis("off")
        show(figure, alt)


def _index(index):
    return ",".join(map(str, index)) if isinstance(index, tuple) else str(index)


def _few(indices):
    return ", ".join(map(_index, indices[:3])) + (", …" if len(indices) > 3 else "")
