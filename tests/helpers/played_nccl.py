"""NCCL's rules for a process group of gloo, whose tensors say on which simulated GPU they are (`played_gpus`).

gloo moves the numbers. What NCCL refuses is refused, in torch's or NCCL's words where they have any; what NCCL leaves
undefined, because the ranks use one communicator in different orders, is an error here. In a group of
"cpu:gloo,cuda:nccl" the tensor's device decides, so CPU tensors keep gloo's rules. What C++ sends (DDP's buckets), what
DTensor sends, and calls of functions taken before this block began, are seen in torch's dispatcher. Tensors made by C++
are where the model of the last DDP is, else on this rank's GPU. Not seen: work that outlives its tensor.
"""

import datetime
import functools
import inspect
import pickle

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

COMBINED, NCCL, GLOO = "cpu:gloo,cuda:nccl", "nccl", "gloo"
COLLECTIVES = (
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "barrier", "broadcast",
    "gather", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
)  # fmt: skip
MESSAGES = ("send", "recv", "isend", "irecv")
c10d = dist.distributed_c10d


class PlayedNccl:
    """Within this block this rank's groups follow NCCL's rules; `where(tensor)` is the device a tensor says it is on.

    `backend` is that of the default group, which the launcher has made. `bound` is the device that it was made with,
    or None.
    """

    def __init__(self, where, backend=COMBINED, bound=None, used=None):
        self._where, self._default, self._bound = where, backend, bound
        self._used = set() if used is None else used  # gains "nccl" once something is asked of it
        self._backends = {}  # of groups made in this block, by name
        self._done = {}  # by group name: what this rank has asked of its communicator, in order
        self._batch = None  # the operations of the batch_isend_irecv under way
        self._is_watched = False  # whether a watched function of torch.distributed is under way
        self._of_others = bound  # the device of a tensor that says none: C++ made it, for DDP or in a DTensor
        self._dispatched = _Dispatched(self._ask_dispatched)

    def __enter__(self):
        self._patch = pytest.MonkeyPatch()
        for name in (*COLLECTIVES, *MESSAGES):
            self._replace(name, self._watched(name, getattr(c10d, name)))
        self._replace("batch_isend_irecv", self._as_batch(c10d.batch_isend_irecv))
        self._replace("new_group", self._in_gloo(c10d.new_group))
        self._replace("init_process_group", self._in_gloo(dist.init_process_group))
        self._replace("get_backend_config", lambda group=None: self._backend(group or dist.group.WORLD))
        for name in ("__init__", "_pre_forward"):
            self._patch.setattr(DistributedDataParallel, name, self._noting(getattr(DistributedDataParallel, name)))
        self._dispatched.__enter__()
        return self

    def __exit__(self, kind, *_):
        self._dispatched.__exit__(None, None, None)
        try:
            if kind is None:
                self._compare_at_the_end()
        finally:
            self._patch.undo()

    def _replace(self, name, function):
        for module in (dist, c10d, dist.device_mesh):
            if hasattr(module, name):
                self._patch.setattr(module, name, function)

    def _noting(self, usual):
        """A method of DDP, which from now on sends tensors that C++ makes, on its model's device."""

        @functools.wraps(usual)
        def noting(model, *args, **kwargs):
            module = args[0] if usual.__name__ == "__init__" else model.module
            self._of_others = self._where(next(module.parameters()))
            return usual(model, *args, **kwargs)

        return noting

    def _backend(self, group):
        return self._backends.get(group.group_name, self._default)

    def _in_gloo(self, usual):
        """`usual` makes a group: of gloo, whatever is asked for."""

        @functools.wraps(usual)
        def make(*args, **kwargs):
            given = inspect.signature(usual).bind(*args, **kwargs).arguments
            asked = str(given.pop("backend", None) or (COMBINED if usual.__name__ != "new_group" else self._default))
            if usual.__name__ == "init_process_group":
                self._default, self._bound = asked, given.pop("device_id", None)
            group = usual(**given | {"backend": GLOO})
            if isinstance(group, dist.ProcessGroup):
                self._backends[group.group_name] = asked
            return group

        return make

    def _watched(self, name, usual):
        signature = inspect.signature(usual)

        @functools.wraps(usual)
        def watched(*args, **kwargs):
            given = signature.bind(*args, **kwargs).arguments
            group = given.get("group") or dist.group.WORLD
            if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:  # torch warns
                return usual(*args, **kwargs)
            inside, self._is_watched = self._is_watched, True  # torch's barrier is an all_reduce
            try:
                if not inside:
                    self._ask(name, given, group)
                return usual(*args, **kwargs)
            finally:
                self._is_watched = inside

        return watched

    def _as_batch(self, usual):
        @functools.wraps(usual)
        def batch(operations):
            self._batch = []
            try:
                works = usual(operations)
                if self._batch:
                    self._done.setdefault(operations[0].group.group_name, []).append(frozenset(self._batch))
                return works
            finally:
                self._batch = None

        return batch

    def _ask_dispatched(self, name, args):
        """As `_ask`, of an operation that no watched function has called."""
        if not self._is_watched:
            group = _group(args)
            if name in MESSAGES:
                other = "group_dst" if name == "send" else "group_src"
                self._ask(name, {"tensor": args[0][0], other: args[2]}, group)
            else:
                # The root of a gather or scatter has a list, too.
                tensors = {"gather": args[1:2], "scatter": args[:1], "barrier": ()}.get(name, args)
                self._ask(name, {"tensors": tensors, "op": [each for each in args if isinstance(each, int)]}, group)

    def _ask(self, name, given, group):
        tensors = [each for each in tree_leaves(given) if isinstance(each, torch.Tensor)]
        device = self._barrier_device(given, group) if name == "barrier" else self._device(tensors)
        backend = self._backend(group)
        if device is None:  # made by C++, and this rank has no GPU of its own
            return
        if backend == NCCL and device.type == "cpu":
            raise RuntimeError("No backend type associated with device type cpu")
        if NCCL not in backend and device.type == "cuda" and name in MESSAGES:
            raise RuntimeError(f"gloo's {name} takes CPU tensors only, and this one is on {device}")
        if NCCL not in backend or device.type == "cpu":
            return
        self._used.add(NCCL)
        self._require_own_gpu(group, device)
        if name in MESSAGES:
            self._message(name, given, group)
            return
        done = self._done.setdefault(group.group_name, [])
        asked = name, *_signature(name, given, tensors)
        done.append(asked)
        number = sum(isinstance(each, tuple) and each[0] not in MESSAGES for each in done)
        theirs = self._first(group, f"call {number}", repr(asked))
        if theirs != repr(asked):
            raise RuntimeError(
                f"NCCL leaves this undefined: collective {number} of group {group.group_name} is {asked} on rank "
                f"{dist.get_rank()} and {theirs} on another"
            )

    def _device(self, tensors):
        devices = {self._where(each) for each in tensors} - {None}
        if len(devices) > 1:
            raise RuntimeError(f"the tensors of one collective are on several devices: {devices}")
        return devices.pop() if devices else self._of_others

    def _barrier_device(self, given, group):
        """The device that torch's barrier takes: the one given, the one bound, else the current, set or not."""
        if given.get("device_ids"):
            return torch.device("cuda", given["device_ids"][0])
        if NCCL not in self._backend(group):
            return torch.device("cpu")
        if self._bound is not None:
            return self._bound
        return torch.device("cpu" if "cpu" in self._backend(group) else f"cuda:{torch.cuda.current_device()}")

    def _require_own_gpu(self, group, device):
        if self._bound is not None and device != self._bound:
            raise dist.DistBackendError(
                f"Attempt to perform collective on tensor not on device passed to init_process_group: {device}, and "
                f"not {self._bound}"
            )
        first = int(self._first(group, f"user of {device}", str(dist.get_rank())))
        if first != dist.get_rank():
            raise dist.DistBackendError(
                f"Duplicate GPU detected : rank {dist.get_rank()} and rank {first} both on CUDA device {device}"
            )

    def _first(self, group, what, value):
        """What the first rank that came here said; `value` if this one is the first."""
        return self._store().compare_set(f"played/{group.group_name}/{what}", "", value).decode()

    def _store(self):
        return c10d._get_default_store()

    def _message(self, name, given, group):
        tensor, is_send = given["tensor"], name.endswith("send")
        other = given.get("dst" if is_send else "src")
        if other is None:
            other = dist.get_global_rank(group, given["group_dst" if is_send else "group_src"])
        if other == dist.get_rank():
            if self._batch is None:
                way, back = ("send", "recv") if is_send else ("recv", "send")
                raise dist.DistBackendError(f"NCCL: Trying to {way} to self without a matching {back}")
            return
        ends = (dist.get_rank(), other) if is_send else (other, dist.get_rank())
        asked = (*ends, tensor.numel(), str(tensor.dtype))
        if self._batch is not None:
            self._batch.append(asked)
        else:
            self._done.setdefault(group.group_name, []).append(frozenset([asked]))

    def _compare_at_the_end(self):
        """Raise RuntimeError if orders do not fit together; every rank comes here, and those that sent wait."""
        if not dist.is_initialized():
            return
        store, me, num_ranks = self._store(), dist.get_rank(), dist.get_world_size()
        keys = [f"played/done/{rank}" for rank in range(num_ranks)]
        members = {name: dist.get_process_group_ranks(c10d._resolve_process_group(name)) for name in self._done}
        store.set(keys[me], pickle.dumps((self._done, members)))
        if not self._done:
            return
        store.wait(keys, datetime.timedelta(seconds=20))
        of_ranks = [pickle.loads(store.get(key)) for key in keys]
        for name in self._done:
            problem = stuck(
                {rank: of_ranks[rank][0].get(name, []) for rank in range(num_ranks) if rank in members[name]}
            )
            if problem:
                raise RuntimeError(f"NCCL would hang or mix up tensors in group {name}: {problem}")


class _Dispatched(TorchDispatchMode):
    """Calls `ask(name, arguments)` before each operation between ranks that reaches torch's dispatcher."""

    def __init__(self, ask):
        super().__init__()
        self._ask = ask

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # else each worker would import the compiler

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace in ("c10d", "_c10d_functional"):
            name = function._schema.name.partition("::")[2].strip("_")
            if name not in ("wait_tensor", "wrap_tensor_autograd"):
                self._ask(name, (*args, *(kwargs or {}).values()))
        return function(*args, **(kwargs or {}))


def _group(args):
    """The process group among the arguments of an operation: an object of C++, or its name comes last."""
    for each in args:
        if isinstance(each, torch.ScriptObject) and each._type().name() == "ProcessGroup":
            return dist.ProcessGroup.unbox(each)
    return c10d._resolve_process_group(args[-1])


def _signature(name, given, tensors):
    """What must agree on all ranks: shapes and dtype, root and operation. Only the root of a scatter has the list."""
    if name in ("gather", "scatter"):
        tensors = [given["tensor"]]
    root = given.get("src", given.get("dst", given.get("group_src", given.get("group_dst"))))
    return (
        [tuple(each.shape) for each in tensors],
        sorted({str(each.dtype) for each in tensors}),
        root,
        str(given.get("op")),
    )


def stuck(orders):
    """Where ranks that work through `orders` stop for ever, in words; "" if they come to the end.

    `orders` is {rank: what it asked of one communicator, in order}. A rank goes on when its collective has been
    reached by all, or each message of its set by the other end. (NCCL may buffer a small message; no order may
    rely on it.)
    """
    at = dict.fromkeys(orders, 0)
    sent = {rank: set() for rank in orders}  # of the set that the rank has reached: what has been delivered

    def now(rank):
        return orders[rank][at[rank]] if rank in orders and at[rank] < len(orders[rank]) else None

    moved = True
    while moved:
        moved = False
        heads = [now(rank) for rank in orders]
        if isinstance(heads[0], tuple) and heads.count(heads[0]) == len(heads):
            at, moved = {rank: place + 1 for rank, place in at.items()}, True
            continue
        for rank in orders:
            for message in sorted(now(rank) or ()) if isinstance(now(rank), frozenset) else ():
                source, target = message[:2]
                ends = source, target
                if all(isinstance(now(end), frozenset) and message in now(end) - sent[end] for end in ends):
                    for end in ends:
                        sent[end].add(message)
                    moved = True
                for end in ends:
                    if end in orders and isinstance(now(end), frozenset) and now(end) == sent[end]:
                        at[end], sent[end], moved = at[end] + 1, set(), True
    return "; ".join(f"rank {rank} is at {now(rank)}" for rank in orders if now(rank) is not None)
