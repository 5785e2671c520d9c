"""Every figure of the course: one palette, units on the axes, the machine in the caption, a text for those who cannot see it.

Functions take plain values and show the figure; `alt` says in one line what is to be seen, and is printed below the
figure because JupyterLab does not pass alternative texts on.
"""

from .charts import bars, gantt, ladder, lines, stacked_bars, timeline, winners
from .collectives import collectives, holdings
from .drawings import diagram, matrices, thread_map

__all__ = [
    "bars", "collectives", "diagram", "gantt", "holdings", "ladder", "lines", "matrices", "stacked_bars", "thread_map",
    "timeline", "winners",
]  # fmt: skip
