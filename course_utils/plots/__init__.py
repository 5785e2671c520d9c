"""Every figure of the course: one palette, units on the axes, the machine in the caption, a text for those who cannot
see it.

Functions take plain values and show the figure; `alt` says in one line what is to be seen, and stands below the figure,
too.
"""

from ..chapters.c19_choosing.figures import agreement
from .charts import bars, gantt, ladder, lines, medians, stacked_bars, timeline, winners
from .collectives import collectives, holdings, step_slider
from .controls import explore
from .drawings import diagram, matrices, thread_map
from ..chapters.c10_fully_sharded.figures import memory_over_step, sharded_step
from ..chapters.c08_processes_that_talk.figures import hops, tree
from ..chapters.c11_large_batches.figures import large_steps
from ..chapters.c02_a_cuda_kernel.figures import launch_grid
from ..chapters.c13_many_machines.figures import nodes
from ..chapters.c11_large_batches.outcomes import outcomes
from ..launch.display.over_time import over_time
from .pipelines import gantts, stages_and_shards
from ..chapters.c01_devices.figures import places
from ..chapters.c04_making_one_device_fast.figures import memory_plans, overlaps
from ..chapters.c04_making_one_device_fast.precision import bit_layouts, within_float16
from ..chapters.c00_start_here.repeats import repeats
from ..chapters.c09_distributed_data_parallel.figures import backward_passes, replicas, ways_to_send
from .roofline import roofline
from ..chapters.c06_splitting_a_model_by_layers.figures import cut_in_two, phases_1f1b, schedules
from ..chapters.c14_parameter_servers.figures import push_and_pull, staleness, who_waits
from ..chapters.c00_start_here.figures import setups
from ..chapters.c07_splitting_inside_a_layer.figures import columns_and_rows, lanes, pair_and_attention
from ..chapters.c05_data_parallelism.figures import data_parallel_step, three_ways
from ..chapters.c15_elsewhere.figures import strategies
from ..chapters.c03_training_on_one_device.figures import clocks, training_step

__all__ = [
    "agreement", "backward_passes", "bars", "bit_layouts", "clocks", "collectives", "columns_and_rows",
    "cut_in_two", "data_parallel_step", "diagram", "explore", "gantt", "gantts", "holdings", "hops", "ladder",
    "lanes", "large_steps", "launch_grid", "lines", "matrices", "medians", "memory_over_step", "memory_plans",
    "nodes", "outcomes", "over_time", "overlaps", "pair_and_attention", "phases_1f1b", "places", "push_and_pull",
    "repeats", "replicas", "roofline", "schedules", "setups", "sharded_step", "stacked_bars", "stages_and_shards",
    "staleness", "step_slider", "strategies", "thread_map", "three_ways", "timeline", "training_step", "tree",
    "ways_to_send", "who_waits", "winners", "within_float16",
]  # fmt: skip
