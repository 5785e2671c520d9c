"""The functions of workers that need a file: those of spawn, loky and torchrun.

`python -m torch.distributed.run … -m tools.bench.from_file all_reduce` prints each rank's time.monotonic() after its
first all-reduce; `… train 12` prints images/s, from rank 0 alone.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def first_all_reduce():
    dist.all_reduce(torch.ones(1))
    return time.monotonic()


def by_hand(rank, world_size, port, folder=None):
    """Do what launch does before it calls a function: environment, one core, process group."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    moment = first_all_reduce()
    dist.destroy_process_group()
    if folder:
        (Path(folder) / str(rank)).write_text(str(moment))  # spawn returns no results
    return moment


def train(repeats):
    """Return the images/s of this rank, which trains with DDP."""
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    from course_utils.measure import throughput
    from course_utils.models import LectureNet

    torch.manual_seed(0)
    model = DistributedDataParallel(LectureNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return throughput.measure(step, 64, repeats=repeats).samples_per_s


def main(what, repeats=0):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    value = train(int(repeats)) if what == "train" else first_all_reduce()
    if what == "all_reduce" or dist.get_rank() == 0:
        sys.stdout.write(f"{value}\n")  # one write: torchrun's workers are unbuffered
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
