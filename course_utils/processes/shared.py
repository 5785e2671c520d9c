"""Memory that is shared, or a file that is mapped, stays so on its way to a worker of this machine: no copy is made.

As under `torch.multiprocessing`: what a worker writes into a model after `model.share_memory()`, the notebook sees.
"""

import mmap
import os
import sys


def storage(untyped):
    """How a worker maps the storage of a tensor that is shared here; None for one that is not."""
    if untyped.device.type != "cpu" or not untyped.is_shared() or not untyped.nbytes():
        return None
    path = getattr(untyped, "filename", None)  # torch.from_file(…, shared=True)
    if path is None:
        try:
            fd, _ = untyped._share_fd_cpu_()
        except RuntimeError:  # shared in the other of torch's ways, by a name
            return None
        path = f"/proc/{os.getpid()}/fd/{fd}"  # which lasts as long as the notebook holds the tensor
    return _map, (path, untyped.nbytes())


def _map(path, num_bytes):
    import torch

    return torch.UntypedStorage.from_file(path, True, num_bytes)


def array(obj):
    """How a worker maps the numpy.memmap that `obj` is; None for all else, and for what would not be the same there."""
    numpy = sys.modules.get("numpy")
    if numpy is None or type(obj) is not numpy.memmap or obj.filename is None or obj.mode == "c":
        return None
    if not isinstance(obj.base, mmap.mmap) or not obj.size:  # a part of one: its offset is not its own
        return None
    order = "C" if obj.flags.c_contiguous else "F"
    mode = "r" if obj.mode == "r" else "r+"
    return numpy.memmap, (os.fspath(obj.filename), obj.dtype, mode, obj.offset, obj.shape, order)
