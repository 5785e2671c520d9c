"""A kernel's launch, drawn: the host, the grid of blocks on the device, and the threads of each block."""

from ...plots.style import COLOURS, STYLE, pale, show


def launch_grid(call, num_blocks, num_threads, alt):
    """Draw the host, which makes the `call`, and on the device a row for each block:
    its threads and its shared memory.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    cell, gap = 0.8, 1.9  # a thread's side, and the distance between blocks
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
