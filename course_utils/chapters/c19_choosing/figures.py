"""Figure of predictions against measurements: one point for each relative error."""

from ...plots.style import COLOURS, MARKERS, new_figure, show


def agreement(errors, alt, title="", band=0.1, *, source):
    """Draw {who measured: [prediction / measurement − 1, …]}, one row each from the top; ±`band` is shaded.

    `source` names the origin of the measurements.
    """
    xlabel = "prediction above (+) or below (−) the measurement, %"
    with new_figure(xlabel, "", title, height=1.1 + 0.32 * len(errors), source=source) as (figure, axes):
        axes.axvspan(-100 * band, 100 * band, color=COLOURS[2], alpha=0.18, linewidth=0, label=f"within {band:.0%}")
        for y, several in enumerate(errors.values()):
            look = {
                "marker": MARKERS[0],
                "markersize": 5,
                "color": COLOURS[0],
                "alpha": 0.6,
                "linestyle": "",
                "markeredgewidth": 0,
            }
            axes.plot(
                [100 * error for error in several],
                [y] * len(several),
                label="one measurement" if not y else None,
                **look,
            )
        axes.axvline(0, color="0.3", linewidth=1)
        reach = 1.1 * max(100 * band, *(100 * abs(error) for several in errors.values() for error in several))
        axes.set_xlim(-reach, reach)
        axes.set_yticks(range(len(errors)), list(errors))
        axes.set_ylim(len(errors) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
        show(figure, alt)
