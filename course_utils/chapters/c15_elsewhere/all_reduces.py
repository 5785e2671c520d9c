"""How long an all-reduce takes: Horovod's, gloo's, and the ring that chapter 08 writes. A worker, for `launch`."""

import os

from ...frameworks.meeting import meet_for_horovod


def seconds(folder, sizes, cycle_ms=None):
    """{way: the median of each of `sizes`, in bytes}; `folder` as for meet_for_horovod. Every rank calls it alike.

    `cycle_ms`: how often Horovod's ranks ask one another what is ready, in milliseconds; 1 by its own choice.
    """
    if cycle_ms is not None:
        os.environ["HOROVOD_CYCLE_TIME"] = str(cycle_ms)
    meet_for_horovod(folder)
    import horovod.torch as hvd
    import torch
    import torch.distributed as dist

    from ...measure.turns import in_turn
    from ...parallel import ring

    hvd.init()
    dist.init_process_group("gloo")  # beside Horovod: launch has set torchrun's variables, too
    found = {"Horovod": [], "chapter 08's ring": [], "gloo": []}
    for size in sizes:
        x = torch.zeros(size // 4)
        ways = {
            "Horovod": lambda x=x, name=f"of {size}": hvd.allreduce_(x, name=name),
            "chapter 08's ring": lambda x=x: ring.all_reduce(x),
            "gloo": lambda x=x: dist.all_reduce(x),
        }
        for name, timing in in_turn(ways).items():
            found[name].append(timing.median_s)
    return found
