"""Draw the picture that GitHub shows where the course is linked: python -m tools.social_picture.

It writes .github/social.png, 1280 × 640 pixels; whoever owns the repository uploads it in its settings.
"""

import math
from pathlib import Path

from course_utils.plots.style import COLOURS, pale

TARGET = Path(__file__).resolve().parent.parent / ".github" / "social.png"
WIDTH, HEIGHT = 1280, 640
RANKS = 4


def draw():
    """Return the figure: the title beside one device, and four that pass chunks round a ring."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 100, HEIGHT / 100), dpi=100, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, HEIGHT))
    axes.set_axis_off()
    axes.text(70, 452, "From One GPU to Many", fontsize=37, weight="bold", va="center")
    lines = "Build each way of multi-GPU training by hand,\nprove it equal to one process, measure it."
    axes.text(72, 345, lines, fontsize=18, va="center", linespacing=1.5, color="#333333")
    axes.text(72, 225, "Jupyter notebooks on PyTorch. Real processes.\nNo GPU needed to begin.", fontsize=18,
              va="center", linespacing=1.5, color="#333333")  # fmt: skip
    _ring(axes, 985, 320, 170)
    return figure


def _ring(axes, x, y, radius):
    places = [
        (x + radius * math.cos(angle), y + radius * math.sin(angle))
        for angle in (math.pi / 2 - 2 * math.pi * rank / RANKS for rank in range(RANKS))
    ]
    for rank, place in enumerate(places):
        arrow = {"arrowstyle": "-|>,head_width=0.5,head_length=0.9", "shrinkA": 62, "shrinkB": 62, "lw": 3,
                 "color": COLOURS[rank], "connectionstyle": "arc3,rad=-0.25"}  # fmt: skip
        axes.annotate("", places[(rank + 1) % RANKS], place, arrowprops=arrow)
    for rank, (left, bottom) in enumerate(places):
        _device(axes, left, bottom, rank)
    axes.text(x, y, "all_reduce", fontsize=17, family="monospace", ha="center", va="center", color="#333333")


def _device(axes, x, y, rank):
    """A device with its rank, and a row of chunks of which one is its own."""
    from matplotlib.patches import FancyBboxPatch, Rectangle

    box = FancyBboxPatch((x - 62, y - 44), 124, 88, boxstyle="round,pad=0,rounding_size=12", lw=3,
                         facecolor=pale(COLOURS[rank]), edgecolor=COLOURS[rank])  # fmt: skip
    axes.add_patch(box)
    axes.text(x, y + 17, f"rank {rank}", fontsize=16, ha="center", va="center")
    for chunk in range(RANKS):
        own = COLOURS[rank] if chunk == rank else "white"
        axes.add_patch(Rectangle((x - 46 + 24 * chunk, y - 28), 20, 20, facecolor=own, edgecolor=COLOURS[rank], lw=1.5))


if __name__ == "__main__":
    draw().savefig(TARGET, dpi=100)
    print(TARGET)
