"""One rank of a job of any size, in this process: its messages go nowhere, and its tensors have shapes but no values.

The job is built and run by the same code as a real one, so its bytes can be counted as in a real one. torch's private
parts for this are used here and nowhere else.
"""

import contextlib
import functools
from unittest import mock

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed import device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextlib.contextmanager
def any_rank(rank, world_size):
    """Be `rank` of `world_size` inside the `with` block; it gives the context in which tensors have no values.

    `init_device_mesh` is called outside that inner context, since a mesh reads its ranks; models and steps are made
    inside it, as on a real rank. Raises RuntimeError in a worker, which has a rank already, and ValueError for a rank
    that there cannot be.
    """
    if dist.is_initialized():
        raise RuntimeError(
            "this process is a rank of a real process group: any_rank is for a notebook or a program of its own"
        )
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank}, and of {world_size} ranks the last is {world_size - 1}")
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        with contextlib.ExitStack() as patched:
            for owner, name in _READS_VALUES:
                patched.enter_context(mock.patch.object(owner, name, _with_values(getattr(owner, name))))
            yield FakeTensorMode()
    finally:
        dist.destroy_process_group()


def _with_values(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return call


# A mesh that a library makes from others reads which ranks are in it.
_READS_VALUES = [(device_mesh.DeviceMesh, "__init__")]
if hasattr(device_mesh, "_MeshLayout"):  # from torch 2.10 on a mesh is made from others by arithmetic on their layouts
    _READS_VALUES.append((device_mesh._MeshLayout, "remap_to_tensor"))
