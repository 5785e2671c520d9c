"""Every figure of the course: one palette, units on the axes, the machine in the caption, a text for those who cannot see it.

Functions take plain values and show the figure; `alt` says in one line what is to be seen, and is printed below the
figure because JupyterLab does not pass alternative texts on.
"""

from .charts import bars, gantt, ladder, lines, stacked_bars, timeline, winners
from .collectives import collectives, holdings, step_slider
from .drawings import diagram, matrices, thread_map
from .hops import hops, tree
from .launches import launch_grid
from .pipelines import gantts, stages_and_shards
from .places import places
from .repeats import repeats
from .replicas import backward_passes, replicas, ways_to_send
from .roofline import roofline
from .setups import setups
from .splits import data_parallel_step, three_ways
from .training import clocks, training_step

__all__ = [
    "backward_passes", "bars", "clocks", "collectives", "data_parallel_step", "diagram", "gantt", "gantts",
    "holdings", "hops", "ladder", "launch_grid", "lines", "matrices", "places", "repeats", "replicas", "roofline",
    "setups", "stacked_bars", "stages_and_shards", "step_slider", "thread_map", "three_ways", "timeline",
    "training_step", "tree", "ways_to_send", "winners",
]  # fmt: skip
