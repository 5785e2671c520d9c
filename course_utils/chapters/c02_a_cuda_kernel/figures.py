"""Figures of chapter 02: a kernel's launch, which thread touches which element, and which pieces a warp fetches."""

from ...plots.style import COLOURS, HATCHES, STYLE, pale, show


def launch_grid(call, num_blocks, num_threads, alt):
    """Draw the host with its `call`, and on the device one row per block: its threads and its shared memory."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    cell, gap = 0.8, 1.9  # a thread's side; the distance between blocks
    wide, high = num_threads * cell + 2.6, num_blocks * gap
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 0.7 + 0.62 * num_blocks), layout="constrained")
        axes.add_patch(Rectangle((-0.5, -0.9), wide + 0.8, high + 0.75, fill=False, edgecolor="0.5", linestyle="--"))
        axes.text(-0.3, -0.6, "device: the grid", fontsize=8, va="center", color="0.3")
        look = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": COLOURS[0], "linewidth": 1.2}
        middle = (num_blocks - 1) * gap / 2 + 0.5
        axes.text(-4.6, middle, f"host\n{call}", ha="center", va="center", bbox=look, fontsize=8.5)
        axes.annotate(
            "", (-0.5, middle), (-2.9, middle), arrowprops={"arrowstyle": "->", "color": COLOURS[1], "linewidth": 1.2}
        )
        axes.text(-1.7, middle - 0.15, "launches", ha="center", va="bottom", fontsize=8)
        for block in range(num_blocks):
            top = block * gap
            axes.add_patch(Rectangle((-0.1, top - 0.2), wide, 1.4, facecolor="0.95", edgecolor="0.6"))
            axes.text(0.05, top + 0.1, f"block {block}", fontsize=8, va="center")
            for thread in range(num_threads):
                place = (thread * cell + 0.05, top + 0.35)
                axes.add_patch(
                    Rectangle(place, cell * 0.86, 0.7, facecolor=pale(COLOURS[block % 7]), edgecolor="white")
                )
                axes.text(place[0] + cell * 0.43, top + 0.7, str(thread), ha="center", va="center", fontsize=7.5)
            axes.add_patch(Rectangle((num_threads * cell + 0.3, top), 2.0, 1.0, facecolor="white", edgecolor="0.6"))
            axes.text(num_threads * cell + 1.3, top + 0.5, "shared\nmemory", ha="center", va="center", fontsize=7.5)
        axes.set_xlim(-6.4, wide + 0.5)
        axes.set_ylim(high - 0.1, -1.1)
        axes.axis("off")
        show(figure, alt)


def thread_map(touches, alt, title="", per_row=16):
    """Draw which threads touch each element of {element: [(block, thread, turn), …]}.

    Elements, blocks and threads are ints, or tuples in 2-D. A box is an element, with its index above it. Colour and
    "b" give the block, "t" the thread, the hatch the turn: a thread's first element is turn 0. A box without a thread
    is dashed; one with several has a thick frame and their number. Of more than 64 elements only the first 64 are
    drawn, and the figure says so.
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
        # Colours and hatches repeat after seven blocks or turns.
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


def fetched_pieces(rows, num_elements, alt, per_piece=8, element_bytes=4):
    """Draw a row for each {name: {thread: element}}: a warp's threads above, the memory below in pieces.

    A line joins a thread to the element that it touches. A piece, of `per_piece` elements, is shaded if it is fetched,
    and the touched elements in it are filled; each row counts the pieces, and the bytes used and fetched.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    threads_at, memory_at, high, row_high = 0.6, 2.2, 0.7, 4.0  # vertical places inside a row
    note = {"fontsize": 7, "color": "0.35", "ha": "right"}
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 0.1 + 1.3 * len(rows)), layout="constrained")
        for row, (name, elements) in enumerate(rows.items()):
            top, fetched = row * row_high, {element // per_piece for element in elements.values()}
            used, moved = element_bytes * len(elements), element_bytes * per_piece * len(fetched)
            words = f"{name}: {len(fetched)} pieces; {used:,} of {moved:,} bytes are used"
            axes.text(0, top + 0.4, words, fontsize=8.5, va="bottom")
            axes.text(num_elements, top + 0.4, "threads of a warp", va="bottom", **note)
            below = top + memory_at + high + 0.15
            axes.text(num_elements, below, f"memory, in pieces of {element_bytes * per_piece} bytes", va="top", **note)
            _draw_threads(axes, elements, num_elements / len(elements), top + threads_at, high, top + memory_at)
            for piece in range(num_elements // per_piece):
                look = {"facecolor": pale(COLOURS[1]) if piece in fetched else "white", "edgecolor": "0.6"}
                axes.add_patch(Rectangle((piece * per_piece, top + memory_at), per_piece, high, linewidth=0.6, **look))
            for element in elements.values():
                axes.add_patch(Rectangle((element, top + memory_at), 1, high, facecolor=COLOURS[1], linewidth=0))
        axes.set_xlim(-0.5, num_elements + 0.5)
        axes.set_ylim(len(rows) * row_high - 0.3, -0.6)
        axes.axis("off")
        show(figure, alt)


def _draw_threads(axes, elements, wide, top, high, memory_at):
    from matplotlib.patches import Rectangle

    for i, (thread, element) in enumerate(elements.items()):
        middle = (i + 0.45) * wide
        axes.add_patch(Rectangle((i * wide, top), 0.9 * wide, high, facecolor=pale(COLOURS[0]), linewidth=0))
        axes.text(middle, top + high / 2, str(thread), fontsize=6, ha="center", va="center")
        axes.plot((middle, element + 0.5), (top + high, memory_at), color=COLOURS[0], linewidth=0.5)


def _index(index):
    return ",".join(map(str, index)) if isinstance(index, tuple) else str(index)


def _few(indices):
    return ", ".join(map(_index, indices[:3])) + (", …" if len(indices) > 3 else "")
