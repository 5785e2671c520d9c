"""All of a student's predictions against what came out: a picture, and a sentence."""

import textwrap
from statistics import median

from ...plots.style import COLOURS, new_figure, show

NONE_YET = "There are no predictions yet: make some in the chapters, and run this cell again."
_MARGIN = 3  # by which factor the axes go beyond the points


def by_chapter(found):
    """Return {chapter: [factor by which each prediction was off, at least 1]}, from what `all_measured` returns."""
    factors = {}
    for each in found:
        ratio = each["predicted"] / each["measured"]
        factors.setdefault(each["chapter"] or "–", []).append(max(ratio, 1 / ratio))
    return factors


def how_far_off(found):
    """Return a sentence: the median of the factors by which predictions were off, of all and of each chapter."""
    if not found:
        return NONE_YET
    factors = by_chapter(found)
    overall = median([factor for several in factors.values() for factor in several])
    chapters = ", ".join(f"{chapter}: {median(several):.3g}" for chapter, several in factors.items())
    of = "your one prediction" if len(found) == 1 else f"the median of your {len(found)} predictions"
    text = f"Off by a factor of {overall:.3g} ({of}); by chapter: {chapters}."
    return textwrap.fill(text, 110)


def draw(found, alt):
    """Draw predictions over what came out, with both axes logarithmic, and beside it each chapter's factors.

    `found` is what `all_measured` returns; without a prediction, nothing is drawn.
    """
    if not found:
        return
    source = "each in its own unit; what came out was measured, computed or published, as its chapter says"
    with new_figure("", "", "", height=3.9, source=source) as (figure, axes):
        axes.remove()
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
        _draw_against(left, found)
        _draw_by_chapter(right, found)
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=2)
        show(figure, alt)


def _marks(axes, found, x, y):
    """Draw a triangle upwards for each prediction that is too high, and one downwards for the others."""
    for is_high, name, i, marker in (
        (True, "predicted too much", 1, "^"),
        (False, "too little, or just right", 0, "v"),
    ):
        chosen = [k for k, each in enumerate(found) if (each["predicted"] > each["measured"]) == is_high]
        look = {"color": COLOURS[i], "marker": marker, "markersize": 6, "linestyle": "", "alpha": 0.8}
        axes.plot([x[k] for k in chosen], [y[k] for k in chosen], label=name, **look)


def _draw_against(axes, found):
    measured, predicted = ([each[key] for each in found] for key in ("measured", "predicted"))
    low, high = min(measured + predicted) / _MARGIN, max(measured + predicted) * _MARGIN
    axes.fill_between([low, high], [low / 2, high / 2], [2 * low, 2 * high], color=COLOURS[2], alpha=0.18, linewidth=0,
                      label="within a factor of 2")  # fmt: skip
    axes.plot([low, high], [low, high], color="0.3", linewidth=1, label="predicted = came out")
    _marks(axes, found, measured, predicted)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    axes.set(xlabel="came out", ylabel="predicted", title="All predictions")


def _draw_by_chapter(axes, found):
    factors = by_chapter(found)
    chapters = list(factors)
    places = [chapters.index(each["chapter"] or "–") for each in found]
    off = [max(each["predicted"] / each["measured"], each["measured"] / each["predicted"]) for each in found]
    axes.axhspan(1, 2, color=COLOURS[2], alpha=0.18, linewidth=0)
    _marks(axes, found, places, off)
    for place, several in enumerate(factors.values()):
        axes.plot([place - 0.35, place + 0.35], [median(several)] * 2, color="black", linewidth=2, zorder=1)
    axes.set(yscale="log", ylim=(0.9, _MARGIN * max(2, *off)), xlim=(-0.6, len(chapters) - 0.4))
    axes.set_xticks(range(len(chapters)), chapters, fontsize=7)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(axis="x", visible=False)
    axes.set(xlabel="chapter (bars: medians)", ylabel="off by a factor of", title="Chapter by chapter")
