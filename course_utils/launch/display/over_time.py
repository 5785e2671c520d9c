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
    """Two plots in a figure, with a line for each rank, redrawn as more data arrives."""

    def __init__(self, figure, world_size):
        self._axes = figure.subplots(1, 2)
        self._lines = [
            [axes.plot([], [], color=COLOURS[rank % 7], linestyle=DASHES[rank % 7])[0] for rank in range(world_size)]
            for axes in self._axes
        ]
        for axes in self._axes:
            axes.set_xlabel("seconds since the launch")
        if world_size <= 8:
            figure.legend(
                self._lines[0], [f"rank {rank}" for rank in range(world_size)], loc="outside upper center", ncols=8
            )

    def draw(self, history: History) -> None:
        """Draw a History as it is now."""
        moments = history.moments
        on_gpus = any(any(moment.gpu_bytes) for moment in moments)
        rates = history.rates()
        seconds = [moment.seconds for moment in moments]
        held = [[(size or 0) / _GIBIBYTE for size in (m.gpu_bytes if on_gpus else m.host_bytes)] for m in moments]
        self._axes[0].set_title(f"{history.unit}/s", loc="left")
        self._axes[1].set_title(f"{'GPU' if on_gpus else 'host'} memory (GiB)", loc="left")
        self._axes[0].set_visible(any(moments[-1].rows))  # no rate where nothing is logged
        for rank, (fast, large) in enumerate(zip(*self._lines, strict=True)):
            fast.set_data(seconds[1:], [each[rank] for each in rates])
            large.set_data(seconds, [each[rank] for each in held])
        for axes in self._axes:
            axes.relim()
            axes.autoscale_view()
            axes.set_ylim(0, 1.15 * axes.dataLim.ymax or 1)  # room above a curve that is level
