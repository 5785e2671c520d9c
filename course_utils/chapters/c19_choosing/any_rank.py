"""Simulate one rank of a job of any size in this process, without messages and with tensors without data.

The code that builds and runs the job is that of a real one, so its bytes can be counted. torch's private API for this
is used only here.
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
    """Make this process `rank` of `world_size` in this block, and yield a context in which tensors have no data.

    Call `init_device_mesh` outside that inner context, because a mesh reads its ranks; make models and run steps inside
    it. Raises RuntimeError in a worker, which has a rank already, and ValueError if `rank` is out of range.
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


# A mesh made from other meshes reads the values of its ranks.
_READS_VALUES = [(device_mesh.DeviceMesh, "__init__")]
# Since torch 2.10, such a mesh is computed from the other meshes' layouts.
if hasattr(device_mesh, "_MeshLayout"):
    _READS_VALUES.append((device_mesh._MeshLayout, "remap_to_tensor"))
