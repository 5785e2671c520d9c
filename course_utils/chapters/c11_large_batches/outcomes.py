"""What many training runs came to: every seed a point, because a mean hides that some runs learn and others do not."""

import statistics

from ...plots.style import COLOURS, MARKERS, draw_prediction, new_figure, show

TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100)


def outcomes(errors, xlabel, alt, title="", guessing=90.0, prediction=(), source=""):
    """Draw {place: {recipe: [test error of each seed, in %]}}: a point a run, a bar at the median; the axis is
    logarithmic.

    `guessing` is the error of one who guesses. `prediction` is one place in a list, or None in it if the student named
    none;
    `source` says where the runs are from, if not from this machine.
    """
    with new_figure(xlabel, "test error (%)", title, height=3.4, source=source) as (figure, axes):
        recipes = list(dict.fromkeys(recipe for found in errors.values() for recipe in found))
        step = 0.8 / len(recipes)
        for x, found in enumerate(errors.values()):
            for i, recipe in enumerate(recipes):
                if recipe not in found:
                    continue
                middle = x + (i - (len(recipes) - 1) / 2) * step
                values = [max(value, TICKS[0]) for value in found[recipe]]
                places = [middle + (k / max(len(values) - 1, 1) - 0.5) * 0.6 * step for k in range(len(values))]
                look = {"marker": MARKERS[i % 7], "color": COLOURS[i % 7], "markersize": 4, "linestyle": ""}
                axes.plot(places, values, alpha=0.6, markeredgewidth=0, **look)
                axes.plot(
                    [middle - 0.4 * step, middle + 0.4 * step],
                    [statistics.median(values)] * 2,
                    color=COLOURS[i % 7],
                    linewidth=2,
                )
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
        axes.set_ylim(TICKS[0] * 0.9, 130)
        axes.grid(axis="x", visible=False)
        for place in prediction:
            draw_prediction(axes, {list(errors).index(place): TICKS[0]} if place in errors else {0: None})
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=3)
        show(figure, alt)
