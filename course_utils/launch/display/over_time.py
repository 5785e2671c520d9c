"""Plots throughput and memory of the ranks of a launch over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...plots.style import COLOURS, DASHES, STYLE, show

if TYPE_CHECKING:
    from ..run import Run
    from .history import History

_GIBIBYTE = 1 << 30


def over_time(run: Run, alt: str = "Throughput and memory of each rank over the course of the launch.") -> None:
    """Plot the history of a Run: steps or samples per second and memory in GiB of each rank, over time."""
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(6.8, 2.3), layout="constrained")
        Curves(figure, run.world_size).draw(run.history)
        show(figure, alt)


class Curves:
    """Two plots in a figure, with a line for each rank, redrawn as more data arrives.

    `animated` lines are not drawn with the figure.
    """

    def __init__(self, figure, world_size, animated=False):
        self.axes = figure.subplots(1, 2)
        looks = [{"color": COLOURS[rank % 7], "linestyle": DASHES[rank % 7]} for rank in range(world_size)]
        self.lines = [[axes.plot([], [], animated=animated, **look)[0] for look in looks] for axes in self.axes]
        for axes in self.axes:
            axes.set_xlabel("seconds since the launch")
        if world_size <= 8:
            figure.legend(
                self.lines[0], [f"rank {rank}" for rank in range(world_size)], loc="outside upper center", ncols=8
            )

    def put(self, history: History, of_logged: bool = False) -> None:
        """Give the lines the data of a History as it is now: its rates, or `of_logged` what was logged if it can."""
        moments = history.moments
        seconds = [moment.seconds for moment in moments]
        on_gpus = any(any(moment.gpu_bytes) for moment in moments)
        held = [[(size or 0) / _GIBIBYTE for size in (m.gpu_bytes if on_gpus else m.host_bytes)] for m in moments]
        if of_logged and history.logged_name:
            title, begin, values = history.logged_name, 0, [moment.logged for moment in moments]
        else:
            title, begin, values = f"{history.unit}/s", 1, history.rates()
        self.axes[0].set_title(title, loc="left")
        self.axes[1].set_title(f"{'GPU' if on_gpus else 'host'} memory (GiB)", loc="left")
        self.axes[0].set_visible(any(moments[-1].rows))  # nothing to draw where nothing is logged
        # Nor where memory is not known, as of ranks on other machines.
        self.axes[1].set_visible(any(size is not None for m in moments for size in (*m.host_bytes, *m.gpu_bytes)))
        for rank, (left, right) in enumerate(zip(*self.lines, strict=True)):
            left.set_data(seconds[begin:], [each[rank] for each in values])
            right.set_data(seconds, [each[rank] for each in held])

    def draw(self, history: History) -> None:
        """Draw the rates and memory of a History as it is now."""
        self.put(history)
        for axes in self.axes:
            axes.relim()
            axes.autoscale_view()
            axes.set_ylim(0, 1.15 * axes.dataLim.ymax or 1)  # room above a curve that is level
