"""Point-to-point messages for tensors on any device, and a count of everything that a rank sends.

NCCL carries GPU tensors, gloo CPU tensors. Where ranks share a GPU, gloo is the backend for GPU tensors too: its
collectives accept them, its send and recv do not. This module, and no other, copies such messages through the CPU.
"""

import datetime

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode


def send(tensor, dst, tag=0, timeout_s=None):
    """Send `tensor` to rank `dst`, which calls `recv`; once this returns, `tensor` may be changed.

    Messages of different tags do not wait for one another. After `timeout_s` seconds gloo closes all connections of
    this rank and RuntimeError is raised; None means the process group's timeout. An empty tensor is not sent. Raises
    ValueError if `dst` is not another rank.
    """
    _require_other_rank(dst, "send to")
    if tensor.numel():
        carried = _as_carried(tensor)  # keeps it alive until it is sent
        _wait(dist.isend(carried, dst, tag=tag), timeout_s)


def recv(tensor, src, tag=0, timeout_s=None):
    """Fill `tensor` with what rank `src` sends, which has the same number of elements, dtype and tag.

    `timeout_s` is as in `send`. Raises ValueError if `src` is not another rank.
    """
    _require_other_rank(src, "receive from")
    if tensor.numel():
        buffer = _to_be_filled(tensor)
        _wait(dist.irecv(buffer, src, tag=tag), timeout_s)
        _put_in(tensor, buffer)


def exchange(outgoing, dst, incoming, src, group=None):
    """Send `outgoing` to rank `dst` and fill `incoming` from rank `src`, both at the same time.

    All ranks of a ring, or both of a pair, can call this at once without deadlock. The two tensors must not share
    memory. `dst` and `src` are ranks of the job, also where they send over the connections of a `group`. Raises
    ValueError as `send` and `recv` do.
    """
    start_exchange(outgoing, dst, incoming, src, group=group).wait()


def start_exchange(outgoing, dst, incoming, src, tag=0, group=None):
    """Start an `exchange` and return at once: what is computed until `.wait()` of the result runs beside the messages.

    Until `wait()` has returned, `outgoing` must not be changed, and `incoming` must not be used.
    """
    _require_other_rank(dst, "send to")
    _require_other_rank(src, "receive from")
    operations, buffer = [], None
    if incoming.numel():  # receive first, so that a buffer is ready
        buffer = _to_be_filled(incoming, group)
        operations.append(dist.P2POp(dist.irecv, buffer, src, group, tag))
    if outgoing.numel():
        operations.append(dist.P2POp(dist.isend, _as_carried(outgoing, group), dst, group, tag))
    works = dist.batch_isend_irecv(operations) if operations else []
    return _Exchange(operations, works, incoming, buffer)


class _Exchange:
    """Messages on their way; it keeps their tensors alive."""

    def __init__(self, operations, works, incoming, buffer):
        self._operations, self._works, self._incoming, self._buffer = operations, works, incoming, buffer

    def wait(self):
        for work in self._works:
            work.wait()
        if self._buffer is not None:
            _put_in(self._incoming, self._buffer)


class Traffic(TorchDispatchMode):
    """Counts the messages and collectives that this thread calls inside a `with Traffic() as traffic:`.

    `sent` and `received` list (other rank, bytes) of each message, `collectives` (name, bytes) of each collective; its
    bytes are those it fills on this rank. Works for any API, since it sees the calls to the backend.
    """

    def __init__(self):
        super().__init__()
        self.sent, self.received, self.collectives = [], [], []

    @property
    def sent_bytes(self):
        return sum(num_bytes for _, num_bytes in self.sent)

    @property
    def received_bytes(self):
        return sum(num_bytes for _, num_bytes in self.received)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.partition("::")[2].strip("_")
        if function.namespace in ("c10d", "_c10d_functional") and name not in ("wait_tensor", "wrap_tensor_autograd"):
            num_bytes = _num_bytes(args[0])
            if name == "send":
                self.sent.append((_rank_of_job(*args[1:3]), num_bytes))
            elif name == "recv":
                self.received.append((_rank_of_job(*args[1:3]), num_bytes))
            elif name.startswith("recv"):
                self.received.append((None, num_bytes))  # from any rank
            else:
                self.collectives.append((name, num_bytes))
        return function(*args, **(kwargs or {}))


def _rank_of_job(group, rank):
    """The rank in the job of `rank` in a group that was passed to C++."""
    return dist.get_global_rank(dist.ProcessGroup.unbox(group), rank)


def _wait(work, timeout_s):
    if timeout_s is None:
        work.wait()
    else:
        work.wait(datetime.timedelta(seconds=timeout_s))


def _num_bytes(tensors):
    if isinstance(tensors, torch.Tensor):
        return tensors.nbytes
    return sum(map(_num_bytes, tensors))


def _require_other_rank(rank, doing):
    me, world_size = dist.get_rank(), dist.get_world_size()
    if rank not in range(world_size) or rank == me:
        others = [other for other in range(world_size) if other != me]
        raise ValueError(f"rank {me} cannot {doing} rank {rank!r}: the other ranks of {world_size} are {others}")


def _goes_through_cpu(tensor, group):
    return tensor.is_cuda and "cuda:nccl" not in dist.get_backend_config(group)


def _as_carried(tensor, group=None):
    tensor = tensor.detach().contiguous()
    return tensor.cpu() if _goes_through_cpu(tensor, group) else tensor


def _to_be_filled(tensor, group=None):
    """A tensor the backend can write into: `tensor` itself, or a new one like it."""
    if _goes_through_cpu(tensor, group):
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return (
        tensor.detach() if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
    )


def _put_in(tensor, buffer):
    if buffer.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(buffer)
