"""Figures of chapter 11: small steps of gradient descent, the large step that replaces them, and test errors."""

import statistics

from ...plots.passes import draw_arrow
from ...plots.style import COLOURS, MARKERS, STYLE, draw_prediction, new_figure, show

SMALL_RATE, NUM_STEPS = 0.15, 4
START = (-1.0, 0.55)
# Noise in the gradient of each small step. Its mean is zero, so the large batch's gradient has none.
NOISE = ((0.0, 1.1), (-0.2, -1.5), (0.3, 1.2), (-0.1, -0.8))
# {title: (curvature along x, along y)}
VALLEYS = {"The gradient changes little on the way": (1.0, 0.6), "It changes much": (1.0, 4.5)}


def large_steps(alt):
    """Draw four small steps, one step at their rate and one at four times it, in a gentle and in a steep valley.

    The paths are gradient descent on (a x² + b y²) / 2, computed, not sketched; the small steps have noisy gradients.
    """
    import matplotlib.pyplot as plt
    import numpy as np

    with plt.rc_context(STYLE):
        figure, both = plt.subplots(1, 2, figsize=(6.4, 2.7), layout="constrained", sharey=True)
        x, y = np.meshgrid(np.linspace(-1.25, 0.25, 120), np.linspace(-1.0, 0.85, 120))
        for axes, (title, (a, b)) in zip(both, VALLEYS.items()):
            axes.contour(x, y, a * x**2 + b * y**2, levels=np.geomspace(0.02, 4, 9), colors="0.75", linewidths=0.7)
            ways = {
                f"{NUM_STEPS} steps, small batches, rate η": descend(a, b, SMALL_RATE, NOISE),
                f"1 step, large batch, rate {NUM_STEPS}η": descend(a, b, NUM_STEPS * SMALL_RATE),
                "1 step, large batch, rate η": descend(a, b, SMALL_RATE),
            }
            for i, (name, way) in enumerate(ways.items()):
                for begin, end in zip(way, way[1:]):
                    draw_arrow(axes, begin, end, {"color": COLOURS[i]}, linewidth=1.6, heads="-|>")
                axes.plot([], [], color=COLOURS[i], label=name)
            axes.plot(*START, "o", color="black", markersize=5)
            axes.plot(0, 0, "+", color="black", markersize=8)
            axes.set_title(title)
            axes.set_xlabel("one weight")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.grid(visible=False)
        both[0].set_ylabel("another weight")
        figure.legend(*both[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
        show(figure, alt)


def descend(a, b, rate, noise=((0.0, 0.0),)):
    """Return the points (x, y) of gradient descent on (a x² + b y²) / 2, from START on, one step per noise."""
    places = [START]
    for noise_x, noise_y in noise:
        x, y = places[-1]
        places.append((x - rate * (a * x + noise_x), y - rate * (b * y + noise_y)))
    return places


TICKS = (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
EDGE = TICKS[0]  # the axis's lower end: a log axis has no 0


def outcomes(errors, xlabel, alt, title="", guessing=90.0, prediction=(), *, source):
    """Draw {place: {recipe: [test error of each seed, in %]}}: a point per run, a bar at the median, a log axis.

    A run below the axis stands at its lower end as a triangle with its number. `guessing` is the error of random
    guessing. `prediction` has one place, or None if the student made no prediction. `source` names the origin of the
    runs.
    """
    with new_figure(xlabel, "test error (%)", title, height=3.4, source=source) as (figure, axes):
        recipes = list(dict.fromkeys(recipe for found in errors.values() for recipe in found))
        step = 0.8 / len(recipes)
        for x, found in enumerate(errors.values()):
            for i, recipe in enumerate(recipes):
                if recipe in found:
                    _draw_runs(axes, found[recipe], x + (i - (len(recipes) - 1) / 2) * step, step, i % 7)
        axes.axhline(guessing, color="0.5", linewidth=0.8, linestyle="--")
        axes.annotate(
            "guessing",
            (0.995, guessing),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=7,
            color="0.4",
        )
        for i, recipe in enumerate(recipes):
            axes.plot([], [], color=COLOURS[i % 7], marker=MARKERS[i % 7], markersize=4, label=recipe)
        axes.set_xticks(range(len(errors)), list(errors))
        axes.set_yscale("log")
        axes.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axes.minorticks_off()
        axes.set_ylim(EDGE * 0.9, 130)
        axes.grid(axis="x", visible=False)
        for place in prediction:
            draw_prediction(axes, {list(errors).index(place): EDGE} if place in errors else {0: None})
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=3)
        show(figure, alt)


def _draw_runs(axes, errors, middle, width, i):
    """Draw one case's runs side by side around x = `middle`, in the i-th look, and a bar at their median."""
    places = [middle + (k / max(len(errors) - 1, 1) - 0.5) * 0.6 * width for k in range(len(errors))]
    on = [(x, error) for x, error in zip(places, errors) if error >= EDGE]
    look = {"color": COLOURS[i], "markersize": 4, "linestyle": "", "markeredgewidth": 0}
    if on:
        axes.plot(*zip(*on), marker=MARKERS[i], alpha=0.6, **look)
    for x, error in zip(places, errors):
        if error < EDGE:
            axes.plot([x], [EDGE], marker="v", **look)
            axes.annotate(f"{error:g}", (x, EDGE), xytext=(0, 4), textcoords="offset points", ha="center", fontsize=7)
    bar = max(statistics.median(errors), EDGE)
    axes.plot([middle - 0.4 * width, middle + 0.4 * width], [bar, bar], color=COLOURS[i], linewidth=2)
