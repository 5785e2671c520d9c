"""What one rank holds and sends in a training step: its tensors' bytes after every operation, and what collectives
move.

Everything passes a `TorchDispatchMode`, operation by operation, and a storage is forgotten when Python has let go of
it.
"""

import contextlib
import time
import weakref
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from . import memory


def local(tensors):
    """The same tensors, of each DTensor the part that this rank holds."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def states(optimizer):
    """The tensors that the optimizer keeps from step to step."""
    return [value for values in optimizer.state.values() for value in values.values()]


def held_bytes(parameters, optimizer):
    """{"parameters", "gradients", "optimizer state": bytes} that this rank holds now."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    kinds = {"parameters": parameters, "gradients": gradients, "optimizer state": states(optimizer)}
    return {kind: memory.num_bytes(local(tensors)) for kind, tensors in kinds.items()}


@dataclass(frozen=True)
class Step:
    """A step of one rank: the bytes alive after each operation, {phase: (its first operation, the one after its last)},
    the bytes that each collective moved, and what torch's allocator had at most on a GPU (None on a CPU)."""

    num_bytes: tuple
    phases: dict
    messages: tuple
    on_gpu: int | None = None

    @property
    def peak(self):
        return max(self.num_bytes)

    @property
    def of_allocator(self):
        """The allocator's peak in words, to be put behind others; "" on a CPU."""
        return "" if self.on_gpu is None else f"; the allocator's peak {self.on_gpu / 1e6:.1f} MB"


class Alive(TorchDispatchMode):
    """Inside a `with Alive(tensors) as alive:` block `alive.num_bytes` grows by a number after each operation, and
    `alive.messages` by one for each collective.

    `tensors` are there already. A reduce-scatter or an all-gather moves the bytes of its whole tensor once, an
    all-reduce, which is both, twice. (A rank sends (N - 1)/N of that.)
    """

    def __init__(self, tensors=()):
        super().__init__()
        self.num_bytes, self.messages, self.phases = [], [], {}
        self._storages, self._has_sent = {}, False
        self._meet(local(tensors))

    def __enter__(self):
        # Between two modules, where one's weights are freed and the next one's not yet gathered, no operation may run.
        self._hook = register_module_forward_pre_hook(lambda module, args: self._note())
        return super().__enter__()

    def __exit__(self, *exception):
        self._hook.remove()
        return super().__exit__(*exception)

    @property
    def peak(self):
        return max(self.num_bytes)

    @contextlib.contextmanager
    def phase(self, name):
        """Note which operations run in the block."""
        begin = len(self.num_bytes)
        yield
        self.phases[name] = begin, len(self.num_bytes)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # the operations on its local tensors will come by
        if self._has_sent:  # gloo's thread lets go of a message a moment after it has arrived
            time.sleep(0.001)
        self._has_sent = function.namespace == "c10d"
        result = function(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, result)) if isinstance(leaf, torch.Tensor)]
        self._meet(tensors)
        if self._has_sent and tensors:  # a collective, whose largest tensor is the whole one; a barrier has none
            self.messages.append((2 if "allreduce" in function.__name__ else 1) * max(t.nbytes for t in tensors))
        self._note()
        return result

    def _meet(self, tensors):
        for storage in (tensor.untyped_storage() for tensor in tensors if tensor.device.type != "meta"):
            known = self._storages.get(storage._cdata)
            if known is None or known() is None:  # a dead one's address is used again
                self._storages[storage._cdata] = weakref.ref(storage)

    def _note(self):
        storages = {key: ref() for key, ref in self._storages.items()}
        self._storages = {key: self._storages[key] for key, storage in storages.items() if storage is not None}
        self.num_bytes.append(sum(storage.nbytes() for storage in storages.values() if storage is not None))


def watch_step(step, tensors, device):
    """Run `step(phase)` a few times and return one as a `Step`; `tensors` stay from step to step. Every rank calls it
    alike.

    The step puts its parts under a `with phase("forward"):`, as for `throughput.measure_phases`.
    """
    alive = Alive(tensors)
    with alive:
        step(alive.phase)  # so it meets what a library keeps for itself, such as DDP's buckets
    dist.barrier()
    alive.num_bytes, alive.messages, alive.phases = [], [], {}
    with alive:
        step(alive.phase)
    on_gpu = None
    if torch.device(device).type == "cuda":  # what a step adds: others before it have left some memory taken
        before = torch.cuda.memory_allocated(device)
        peak = memory.allocated_peak(lambda: step(contextlib.nullcontext), device)
        on_gpu = alive.num_bytes[-1] + peak - before
    return Step(tuple(alive.num_bytes), alive.phases, tuple(alive.messages), on_gpu)
