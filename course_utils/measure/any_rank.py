"""One rank of a job of any size, in this process: its messages go nowhere, and its tensors have shapes but no values.

The job is built and run by the same code as a real one, so its bytes can be counted as in a real one. torch's private
parts for this are used here and nowhere else.
"""

import contextlib

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextlib.contextmanager
def any_rank(rank, world_size):
    """Be `rank` of `world_size` inside the `with` block; it gives the context in which tensors have no values.

    Meshes and groups are made outside that inner context, models inside it. Raises RuntimeError in a worker, which has
    a rank already, and ValueError for a rank that there cannot be.
    """
    if dist.is_initialized():
        raise RuntimeError("this process is a rank of a real process group: any_rank is for a notebook or a program of its own")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank}, and of {world_size} ranks the last is {world_size - 1}")
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield FakeTensorMode()
    finally:
        dist.destroy_process_group()
