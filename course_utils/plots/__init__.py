"""Figures that several chapters draw: one palette, units on the axes, the machine in the caption, a text for those who
cannot see it.

Functions take plain values and show the figure; `alt` says in one line what is to be seen, and stands below the figure,
too. What one chapter alone draws is in its room, `course_utils.chapters`.
"""

from .charts import bars, lines, stacked_bars, timeline
from .controls import explore
from .drawings import diagram
from .holdings import collectives, holdings, step_slider
from .pipelines import gantts
from .roofline import roofline

__all__ = [
    "bars", "collectives", "diagram", "explore", "gantts", "holdings", "lines", "roofline", "stacked_bars",
    "step_slider", "timeline",
]  # fmt: skip
