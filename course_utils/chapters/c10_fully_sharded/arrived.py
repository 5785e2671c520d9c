"""Count, to the byte, what arrives at a rank from other ranks."""

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode


class Arrived(TorchDispatchMode):
    """Counts the bytes that other ranks send to this one inside `with Arrived() as arrived:`, in `arrived.num_bytes`.

    An all-gather, or a gather at its root, brings all parts but the rank's own; a scatter or a broadcast brings nothing
    to its root. An all-reduce counts as a ring's does, 2(N − 1)/N of the tensor. `num_messages` counts the calls.
    """

    def __init__(self):
        super().__init__()
        self.num_bytes = self.num_messages = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # its local tensors' operations will arrive here
        result = function(*args, **(kwargs or {}))
        if function.namespace in ("c10d", "_c10d_functional"):
            name = function._schema.name.partition("::")[2].strip("_").replace("_", "")
            count = next((count for start, count in _COUNTS.items() if name.startswith(start)), None)
            if count is not None:
                filled = args[0] if function.namespace == "c10d" else result
                self.num_bytes += round(count(_num_bytes(filled), args, dist.get_rank(), dist.get_world_size()))
                self.num_messages += 1
        return result


def _num_bytes(tensors):
    return tensors.nbytes if isinstance(tensors, torch.Tensor) else sum(map(_num_bytes, tensors))


def _of_others(num_bytes, args, rank, n):
    return num_bytes * (n - 1) / n


def _unequal_parts(num_bytes, args, rank, n):
    """Of an all-to-all: what is filled, without this rank's own part."""
    counts = next((each for each in args[1:4] if isinstance(each, (list, tuple)) and each), None)
    if not counts or isinstance(counts[0], torch.Tensor):
        own = args[0][rank].nbytes if isinstance(args[0], (list, tuple)) else num_bytes / n
    else:
        own = num_bytes * counts[rank] / max(1, sum(counts))
    return num_bytes - own


def _not_at_the_root(num_bytes, args, rank, n):
    root = next(each for each in args[1:] if isinstance(each, int))
    return num_bytes if rank != root else 0


# {beginning of an operation's name: bytes that arrive at `rank` of n, where `num_bytes` are filled on it}
_COUNTS = {
    "allgather": _of_others,
    "gather": _of_others,  # nothing is filled but at the root
    "alltoall": _unequal_parts,
    "scatter": _not_at_the_root,
    "broadcast": _not_at_the_root,
    "reducescatter": lambda num_bytes, args, rank, n: num_bytes * (n - 1),
    "allreduce": lambda num_bytes, args, rank, n: 2 * num_bytes * (n - 1) / n,
    "reduce": lambda num_bytes, args, rank, n: num_bytes * (n - 1) if args[3] == rank else 0,
    "recv": lambda num_bytes, args, rank, n: num_bytes,
}
