"""Figures that several chapters draw: one palette, units on the axes, what was used in the caption, alternative text.

Functions take plain values and show the figure. `alt` describes it in one line, and is also printed below it. Figures
of a single chapter are in its package, in `course_utils.chapters`.
"""

from .charts import bars, lines, stacked_bars, timeline, timelines
from .controls import explore
from .drawings import diagram
from .holdings import collectives, holdings, step_slider
from .pipelines import gantts
from .roofline import roofline

__all__ = [
    "bars", "collectives", "diagram", "explore", "gantts", "holdings", "lines", "roofline", "stacked_bars",
    "step_slider", "timeline", "timelines",
]  # fmt: skip
