"""Counting the bytes that leave a rank in all-to-alls and all-reduces."""

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode


class Sent(TorchDispatchMode):
    """Counts the bytes that this rank sends to others in collectives called inside `with Sent() as sent:`.

    `all_to_alls` has the bytes of each all-to-all, in order; a rank's rows for itself do not count. `all_reduces` has
    those of each all-reduce, by the formula of a ring, 2(N − 1)/N times the tensor's. Backward passes are included.
    """

    def __init__(self):
        super().__init__()
        self.all_to_alls, self.all_reduces = [], []

    @property
    def num_bytes(self):
        return sum(self.all_to_alls) + sum(self.all_reduces)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name
        if name == "c10d::alltoall_base_":
            _, rows, group, _, counts = args[:5]
            self.all_to_alls.append(_to_others(rows, dist.ProcessGroup.unbox(group), counts))
        elif name == "_c10d_functional::all_to_all_single":
            rows, _, counts, group = args[:4]
            group = group if isinstance(group, dist.ProcessGroup) else _by_name(group)
            self.all_to_alls.append(_to_others(rows, group, counts))
        elif name == "c10d::allreduce_":
            size = dist.ProcessGroup.unbox(args[1]).size()
            self.all_reduces += [2 * (size - 1) * tensor.nbytes // size for tensor in args[0]]
        return function(*args, **(kwargs or {}))


def _to_others(rows, group, counts):
    """The bytes of `rows` that do not stay on this rank; without `counts`, each rank is sent equally many."""
    row_bytes = rows.nbytes // max(len(rows), 1)
    counts = counts or [len(rows) // group.size()] * group.size()
    return row_bytes * (sum(counts) - counts[group.rank()])


def _by_name(name):
    return torch._C._distributed_c10d._resolve_process_group(name)
