"""Sends shared memory and mapped files to workers on this machine without a copy.

As with `torch.multiprocessing`, the notebook sees what a worker writes into a model after `model.share_memory()`.
"""

import mmap
import os
import sys


def storage(untyped):
    """Return (function, arguments) with which a worker maps a shared tensor's storage; None if it is not shared."""
    if untyped.device.type != "cpu" or not untyped.is_shared() or not untyped.nbytes():
        return None
    path = getattr(untyped, "filename", None)  # torch.from_file(…, shared=True)
    if path is None:
        try:
            fd, _ = untyped._share_fd_cpu_()
        except RuntimeError:  # shared by name: torch's other strategy
            return None
        path = f"/proc/{os.getpid()}/fd/{fd}"  # exists as long as the notebook has the tensor
    return _map, (path, untyped.nbytes())


def _map(path, num_bytes):
    import torch

    return torch.UntypedStorage.from_file(path, True, num_bytes)


def array(obj):
    """Return (function, arguments) with which a worker maps a numpy.memmap; None for all else.

    Also None for a copy-on-write memmap and for a slice of one, which cannot be mapped alike.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or type(obj) is not numpy.memmap or obj.filename is None or obj.mode == "c":
        return None
    if not isinstance(obj.base, mmap.mmap) or not obj.size:  # a slice has its parent's offset
        return None
    order = "C" if obj.flags.c_contiguous else "F"
    mode = "r" if obj.mode == "r" else "r+"
    return numpy.memmap, (os.fspath(obj.filename), obj.dtype, mode, obj.offset, obj.shape, order)
