"""Time the all-reduces of Horovod, of gloo and of chapter 08's ring, in workers of `launch`."""

import os

from ...frameworks.meeting import meet_for_horovod


def seconds(folder, sizes, rounds, cycle_ms=None):
    """Return {way: (medians, (lower quartiles, upper quartiles))} in seconds, for each of `sizes`, in bytes.

    Every rank must call this. There are `rounds` rounds, in each of which all ways are timed. `folder` is as for
    meet_for_horovod. `cycle_ms` is the interval in milliseconds at which Horovod's ranks negotiate what is ready; None
    leaves Horovod's default, 1.
    """
    if cycle_ms is not None:
        os.environ["HOROVOD_CYCLE_TIME"] = str(cycle_ms)
    meet_for_horovod(folder)
    import horovod.torch as hvd
    import torch
    import torch.distributed as dist

    from ...measure.throughput import in_turn
    from ...parallel import ring

    hvd.init()
    dist.init_process_group("gloo")  # uses torchrun's variables, which launch has set
    found = {"Horovod": [], "chapter 08's ring": [], "gloo": []}
    for size in sizes:
        x = torch.zeros(size // 4)
        ways = {
            "Horovod": lambda x=x, name=f"of {size}": hvd.allreduce_(x, name=name),
            "chapter 08's ring": lambda x=x: ring.all_reduce(x),
            "gloo": lambda x=x: dist.all_reduce(x),
        }
        for name, timing in in_turn(ways, rounds).items():
            found[name].append((timing.median_s, *timing.middle_half_s))
    columns = {name: [list(column) for column in zip(*rows)] for name, rows in found.items()}
    return {name: (medians, (low, high)) for name, (medians, low, high) in columns.items()}
