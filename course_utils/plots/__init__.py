"""Every figure of the course: one palette, units on the axes, the machine in the caption, a text for those who cannot
see it.

Functions take plain values and show the figure; `alt` says in one line what is to be seen, and stands below the figure,
too.
"""

from .agreement import agreement
from .charts import bars, gantt, ladder, lines, medians, stacked_bars, timeline, winners
from .collectives import collectives, holdings, step_slider
from .controls import explore
from .drawings import diagram, matrices, thread_map
from .fully_sharded import memory_over_step, sharded_step
from .hops import hops, tree
from .large_steps import large_steps
from .launches import launch_grid
from .machines import nodes
from .outcomes import outcomes
from .over_time import over_time
from .pipelines import gantts, stages_and_shards
from .places import places
from .plans import memory_plans, overlaps
from .precision import bit_layouts, within_float16
from .repeats import repeats
from .replicas import backward_passes, replicas, ways_to_send
from .roofline import roofline
from .schedules import cut_in_two, phases_1f1b, schedules
from .servers import push_and_pull, staleness, who_waits
from .setups import setups
from .shards import columns_and_rows, lanes, pair_and_attention
from .splits import data_parallel_step, three_ways
from .strategies import strategies
from .training import clocks, training_step

__all__ = [
    "agreement", "backward_passes", "bars", "bit_layouts", "clocks", "collectives", "columns_and_rows",
    "cut_in_two", "data_parallel_step", "diagram", "explore", "gantt", "gantts", "holdings", "hops", "ladder",
    "lanes", "large_steps", "launch_grid", "lines", "matrices", "medians", "memory_over_step", "memory_plans",
    "nodes", "outcomes", "over_time", "overlaps", "pair_and_attention", "phases_1f1b", "places", "push_and_pull",
    "repeats", "replicas", "roofline", "schedules", "setups", "sharded_step", "stacked_bars", "stages_and_shards",
    "staleness", "step_slider", "strategies", "thread_map", "three_ways", "timeline", "training_step", "tree",
    "ways_to_send", "who_waits", "winners", "within_float16",
]  # fmt: skip
