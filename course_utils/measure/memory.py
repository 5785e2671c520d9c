"""The bytes of a training step, counted by storage: weights, gradients, optimizer state, activations."""

import contextlib
from collections.abc import Callable, Iterable, Iterator

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from .throughput import PhasedStep


def num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the storages behind `tensors`; views and tied weights share a storage, which counts once."""
    storages = {}
    for tensor in tensors:
        for part in _dense_parts(tensor):
            storage = part.untyped_storage()
            storages[storage._cdata] = storage
    return sum(storage.nbytes() for storage in storages.values())


def weight_bytes(model: torch.nn.Module) -> int:
    """Bytes of the model's parameters and buffers."""
    return num_bytes([*model.parameters(), *model.buffers()])


def gradient_bytes(model: torch.nn.Module) -> int:
    """Bytes of the gradients that the model's parameters hold now."""
    return num_bytes(p.grad for p in model.parameters() if p.grad is not None)


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the tensors that the optimizer keeps from step to step (none before its first step)."""
    return num_bytes(_tensors_in(optimizer.state))


class Activations:
    """Counts what autograd saves for the backward pass inside a `with` block: read `activations.num_bytes` afterwards.

    Parameters and buffers of `model`, and views of them, do not count. Of an input that is a view, such as a batch
    sliced from a data set, only the bytes it spans count. Saved tensors are kept until the block ends, since a reused
    address would make two tensors count as one.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        kept = [part for t in [*model.parameters(), *model.buffers()] for part in _dense_parts(t)]
        self._known = {t.untyped_storage()._cdata for t in kept}
        self._saved: list[torch.Tensor] = []
        self.num_bytes = 0

    def __enter__(self):
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *exception):
        self._hooks.__exit__(*exception)
        made, given = [], {}
        for tensor in self._saved:
            storage = tensor.untyped_storage()
            if tensor._is_view() and tensor.grad_fn is None:
                first, last = given.get(storage._cdata, (storage.nbytes(), 0))
                begin, end = _span(tensor)
                given[storage._cdata] = min(first, begin), max(last, end)
            else:
                made.append(tensor)
        whole = {tensor.untyped_storage()._cdata for tensor in made}
        parts = sum(end - begin for key, (begin, end) in given.items() if key not in whole)
        self.num_bytes = num_bytes(made) + parts
        self._saved.clear()

    def _pack(self, tensor):
        for part in _dense_parts(tensor):
            if part.untyped_storage()._cdata not in self._known:
                self._saved.append(part)
        return tensor


def training_bytes(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, compute_loss: Callable[[], torch.Tensor]
) -> dict[str, int]:
    """Run one training step and return the bytes of weights, gradients, optimizer state and activations.

    Returns {"weights": …, "gradients": …, "optimizer state": …, "activations": …}. `compute_loss()` runs the forward
    pass and returns the loss; activations are what it saves for the backward pass. Gradients and optimizer state are
    counted after the backward pass and the optimizer's step, which run here.
    """
    with Activations(model) as activations:
        loss = compute_loss()
    loss.backward()
    optimizer.step()
    return {
        "weights": weight_bytes(model),
        "gradients": gradient_bytes(model),
        "optimizer state": optimizer_bytes(optimizer),
        "activations": activations.num_bytes,
    }


def trace(step: PhasedStep, device: torch.device | str = "cpu") -> dict[str, tuple[list[float], list[int]]]:
    """Run `step(phase)`, with phases as for `throughput.measure_phases`, and return what torch held over time.

    Returns {phase: (milliseconds, bytes)}, two lists of equal length with a point before and one after each change. The
    bytes are what torch's allocator for `device` has handed out beyond the start of the step. Uses torch's profiler.
    """
    on_gpu = torch.device(device).type == "cuda"
    names: set[str] = set()

    @contextlib.contextmanager
    def phase(name: str) -> Iterator[None]:
        names.add(name)  # optimizers add annotations of their own to the profile
        with record_function(name):
            pass  # an empty mark: frees inside an annotation would count at its end
        yield

    # The default records both if there is a GPU.
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA][: 1 + on_gpu]
    with profile(activities=activities, profile_memory=True, acc_events=True) as profiled:
        step(phase)
        if on_gpu:
            torch.cuda.synchronize(device)

    events = sorted(profiled.events(), key=lambda event: event.time_range.end)
    on_host = [event for event in events if event.device_type.name == "CPU"]  # a GPU repeats the marks
    marks = sorted((event.time_range.start, event.name) for event in on_host if event.name in names)
    if not marks:
        raise ValueError('the step has no phases: put its parts under `with phase("forward"):` and the like')
    held = 0
    curves: dict[str, tuple[list[float], list[int]]] = {name: ([], []) for _, name in marks}
    for event in events:
        end = event.time_range.end
        more = event.self_device_memory_usage if on_gpu else event.self_cpu_memory_usage
        if more:
            times, sizes = curves[([name for begin, name in marks if begin <= end] or [marks[0][1]])[-1]]
            times += [(end - marks[0][0]) / 1e3] * 2
            sizes += [held, held + more]
            held += more
    return curves


def curve(step: PhasedStep, device: torch.device | str = "cpu") -> tuple[list[float], list[float]]:
    """The curve of `trace` with all phases in one: (milliseconds, MB)."""
    points = sorted(
        (point for part in trace(step, device).values() for point in zip(*part)), key=lambda point: point[0]
    )
    return [time for time, _ in points], [size / 1e6 for _, size in points]


def allocated_peak(step: Callable[[], object], device: torch.device | str) -> int | None:
    """Run `step()` and return `torch.cuda.max_memory_allocated` over it, in bytes; None on a CPU.

    It exceeds the four categories by temporary tensors (gradients of activations, library workspaces), by rounding (the
    allocator hands out multiples of 512 bytes), and by whatever else is on the device.
    """
    if torch.device(device).type != "cuda":
        step()
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


def free_workspaces(device: torch.device | str) -> int | None:
    """Free the workspaces of cuBLAS and return their bytes; None on a CPU.

    PyTorch hands one to cuBLAS for each thread and stream that multiplies matrices, and keeps it: 8.5 MB, on a GPU of
    compute capability 9.0 33.6 MB, and 1 MB for cuBLASLt (ATen/cuda/CublasHandlePool.cpp). The next product makes it
    anew.
    """
    if torch.device(device).type != "cuda":
        return None
    torch.cuda.synchronize(device)
    held = torch.cuda.memory_allocated(device)
    torch._C._cuda_clearCublasWorkspaces()
    return held - torch.cuda.memory_allocated(device)


def _dense_parts(tensor):
    """The dense tensors behind a tensor: itself, or the indices and values of a sparse one."""
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return (tensor,)


def _tensors_in(value):
    """All tensors in nested dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _tensors_in(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _tensors_in(inner)


def _span(tensor):
    """The (first byte, byte after the last) of a dense tensor within its storage."""
    if tensor.numel() == 0:
        return 0, 0
    first = tensor.storage_offset()
    last = first + sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride()))
    return first * tensor.element_size(), (last + 1) * tensor.element_size()
