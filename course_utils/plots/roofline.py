"""The roofline: the FLOP/s that a device can reach, against FLOP per byte of memory traffic.

After S. Williams, A. Waterman and D. Patterson, "Roofline: an insightful visual performance model for multicore
architectures", Communications of the ACM 52(4), 2009.
"""

from .style import COLOURS, DASHES, MARKERS, draw_prediction, new_figure, show


def roofline(roofs, points, alt, title="", prediction=None, source="", placement=None):
    """Draw {device: (GB/s, GFLOP/s)} as roofs, and {operation: (FLOP per byte, GFLOP/s reached)} as points below them.

    `prediction` is the student's {FLOP per byte: GFLOP/s}, or None. `source` and
    `placement` are those of `lines`.
    """
    far = [intensity for intensity, _ in points.values()] + [peak / bandwidth for bandwidth, peak in roofs.values()]
    low, high = min(far) / 3, max(far) * 3
    with new_figure(
        "FLOP per byte of memory traffic", "GFLOP/s", title, height=3.1, source=source, placement=placement
    ) as (figure, axes):
        axes.set_xscale("log")
        axes.set_yscale("log")
        for i, (name, (bandwidth, peak)) in enumerate(roofs.items()):
            ridge, look = peak / bandwidth, {"color": "0.3", "linestyle": DASHES[i % 7]}
            axes.plot(
                [low, ridge, high],
                [low * bandwidth, peak, peak],
                label=f"{name}: {bandwidth:,.0f} GB/s, {peak:,.0f} GFLOP/s",
                **look,
            )
        for i, (name, (intensity, reached)) in enumerate(points.items()):
            look = {"color": COLOURS[i % 7], "marker": MARKERS[i % 7], "linestyle": "", "markersize": 6}
            rate = f"{reached:,.0f}" if reached >= 100 else f"{reached:.3g}"
            axes.plot([intensity], [reached], label=f"{name}: {rate} GFLOP/s", **look)
        draw_prediction(axes, prediction)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:,g}")
        axes.set_xlim(low, high)
        if len(roofs) + len(points) > 8:  # a long legend beside the axes would narrow them
            figure.set_figheight(4.0)
            figure.legend(loc="outside upper left", ncols=2)
        else:
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
        show(figure, alt)
