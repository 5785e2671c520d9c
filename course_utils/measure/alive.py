"""What one rank holds and sends in a training step: bytes alive after each operation, and bytes per collective.

A `TorchDispatchMode` sees every operation. A storage stops counting when Python has freed it.
"""

import contextlib
import time
import weakref
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from . import memory
from .throughput import PhasedStep


def local(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors, with each DTensor replaced by the part that this rank holds."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def states(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The tensors that the optimizer keeps from step to step."""
    return [value for values in optimizer.state.values() for value in values.values()]


def held_bytes(parameters: Collection[torch.Tensor], optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """The bytes this rank holds now: {"parameters", "gradients", "optimizer state": bytes}."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    kinds = {"parameters": parameters, "gradients": gradients, "optimizer state": states(optimizer)}
    return {kind: memory.num_bytes(local(tensors)) for kind, tensors in kinds.items()}


@dataclass(frozen=True)
class Step:
    """One training step of one rank.

    `num_bytes` are the bytes alive after each operation; `phases` is {phase: (first operation, operation after the
    last)}; `messages` are the bytes each collective moved; `device` is where the step computed; `on_gpu` is the peak of
    torch's allocator, None on a CPU.
    """

    num_bytes: tuple[int, ...]
    phases: dict[str, tuple[int, int]]
    messages: tuple[int, ...]
    device: torch.device
    on_gpu: int | None = None

    @property
    def peak(self) -> int:
        return max(self.num_bytes)

    @property
    def of_allocator(self) -> str:
        """The allocator's peak as text to append to a message; "" on a CPU."""
        return "" if self.on_gpu is None else f"; the allocator's peak {self.on_gpu / 1e6:.1f} MB"


class Alive(TorchDispatchMode):
    """Records the bytes alive and the bytes sent inside a `with Alive(tensors) as alive:` block.

    `alive.num_bytes` gains a number after each operation, `alive.messages` one for each collective. `tensors` exist
    already. A reduce-scatter or all-gather counts the bytes of its whole tensor once, an all-reduce, which is both,
    twice. (A rank sends (N - 1)/N of that.)
    """

    def __init__(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.num_bytes: list[int] = []
        self.messages: list[int] = []
        self.phases: dict[str, tuple[int, int]] = {}
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._has_sent = False
        self._meet(local(tensors))

    def __enter__(self):
        # FSDP frees one module's weights and gathers the next one's without an operation in between: also note here.
        self._hook = register_module_forward_pre_hook(lambda module, args: self._note())
        return super().__enter__()

    def __exit__(self, *exception):
        self._hook.remove()
        return super().__exit__(*exception)

    @property
    def peak(self) -> int:
        return max(self.num_bytes)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note which operations run in the block."""
        begin = len(self.num_bytes)
        yield
        self.phases[name] = begin, len(self.num_bytes)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # its local tensors' operations will arrive here
        if self._has_sent:  # gloo's thread frees a message shortly after it arrived
            time.sleep(0.001)
        self._has_sent = function.namespace == "c10d"
        result = function(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, result)) if isinstance(leaf, torch.Tensor)]
        self._meet(tensors)
        if self._has_sent and tensors:  # a collective's largest tensor is the whole one; a barrier has none
            self.messages.append((2 if "allreduce" in function.__name__ else 1) * max(t.nbytes for t in tensors))
        self._note()
        return result

    def _meet(self, tensors):
        for storage in (tensor.untyped_storage() for tensor in tensors if tensor.device.type != "meta"):
            known = self._storages.get(storage._cdata)
            if known is None or known() is None:  # the address of a freed storage is reused
                self._storages[storage._cdata] = weakref.ref(storage)

    def _note(self):
        total, freed = 0, []
        for key, ref in self._storages.items():  # all, each time: FSDP resizes storages without an operation
            storage = ref()
            if storage is None:
                freed.append(key)
            else:
                total += storage.nbytes()
        for key in freed:
            del self._storages[key]
        self.num_bytes.append(total)


def watch_step(step: PhasedStep, tensors: Iterable[torch.Tensor], device: torch.device | str) -> Step:
    """Run `step(phase)` two or three times and return one run as a `Step`; `tensors` live from step to step.

    Every rank must call it. `step` wraps its parts in `with phase("forward"):`, as for `throughput.measure_phases`.
    """
    alive = Alive(tensors)
    with alive:
        step(alive.phase)  # a first run, for buffers that a library keeps, such as DDP's
    dist.barrier()
    alive.num_bytes, alive.messages, alive.phases = [], [], {}
    with alive:
        step(alive.phase)
    on_gpu = None
    if torch.device(device).type == "cuda":  # only what a step adds, not memory that was taken before
        before = torch.cuda.memory_allocated(device)
        peak = memory.allocated_peak(lambda: step(contextlib.nullcontext), device)
        on_gpu = alive.num_bytes[-1] + peak - before  # type: ignore[operator]  # on a GPU it is a number
    return Step(tuple(alive.num_bytes), alive.phases, tuple(alive.messages), torch.device(device), on_gpu)
