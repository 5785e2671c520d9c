"""GPUs simulated on the CPU: tensors hold real values there, and each says which GPU it would be on.

What PyTorch refuses on a GPU is refused here: two devices in one operation, `.numpy()` of a GPU tensor. A tensor made
by C++ (a gradient in transit, what DDP holds) has no known device and is accepted with any other. Of torch.cuda only
what the course uses exists. `on_machine` launches workers
there; their groups follow the rules of `played_nccl`.
"""

import contextlib
import json
import os
import tempfile
import threading
import types
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from course_utils import hardware, launch
from tests.helpers import machines
from tests.helpers.played_nccl import COMBINED, PlayedNccl

CPU = torch.device("cpu")
GIB = 2**30


def where(tensor):
    """The device that a tensor says it is on, None where it does not."""
    known = getattr(tensor, "played_device", None)
    is_distributed = known is None and hasattr(tensor, "device_mesh")  # a DTensor, whose module is not imported for it
    return normal(tensor.device_mesh.device_type) if is_distributed else known


def put(device, value):
    """`value`, each of its tensors that does not say where it is being on `device` from now on."""
    for tensor in tree_leaves(value):
        if isinstance(tensor, torch.Tensor) and device is not None and where(tensor) is None:
            tensor.played_device = device
    return value


def normal(device):
    device = torch.device(device)
    return torch.device("cuda", torch.cuda.current_device()) if device == torch.device("cuda") else device


class PlayedGpus(TorchFunctionMode):
    """Within this block torch has the GPUs of a machine, in all threads that begin in it.

    `machine` is one of `helpers.machines` by name or its parts, or the number of its A100s.
    """

    def __init__(self, machine="8 A100"):
        super().__init__()
        self._machine, self.used = machine, set()  # `used`: the names of GPUs that have computed

    def __enter__(self):
        self._patch = pytest.MonkeyPatch()
        for name in ("CUDA_VISIBLE_DEVICES", "COURSE_DEVICE"):
            self._patch.setenv(name, "")  # so that what is set within is undone
            self._patch.delenv(name)
        parts = self._machine
        if isinstance(parts, int):
            parts = {"cards": [machines.A100] * parts, "linked": True}
        elif isinstance(parts, str):
            parts = machines.MACHINES[parts]
        machines.play(self._patch, **parts)
        play_torch_cuda(self._patch, 1 if parts.get("slices") else len(parts["cards"]), len(parts["cards"]))
        # torch leaves a mode while one of its functions runs: what hooks and autograd functions do has to enter again.
        for owner, name in ((threading.Thread, "run"), (torch.autograd, "_engine_run_backward")):
            self._patch.setattr(owner, name, self._within(getattr(owner, name)))
        for name in ("from_numpy", "frombuffer"):  # no mode sees them
            usual = getattr(torch, name)
            self._patch.setattr(torch, name, lambda *args, usual=usual, **kwargs: put(CPU, usual(*args, **kwargs)))
        make = torch.nn.Parameter.__new__

        def make_where_its_data_is(cls, data=None, requires_grad=True):
            made = make(cls, data, requires_grad)
            return made if data is None else put(where(data), made)

        self._patch.setattr(torch.nn.Parameter, "__new__", make_where_its_data_is)
        return super().__enter__()

    def __exit__(self, *exception):
        self._patch.undo()
        return super().__exit__(*exception)

    def _within(self, function):
        mode = self

        def within(*args, **kwargs):
            with TorchFunctionModeOf(mode):
                return function(*args, **kwargs)

        return within

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return call(function, args, dict(kwargs or {}), self.used)


class TorchFunctionModeOf(TorchFunctionMode):
    """`mode` in another thread, or inside one of its own calls."""

    def __init__(self, mode):
        super().__init__()
        self._mode = mode

    def __torch_function__(self, *args, **kwargs):
        return self._mode.__torch_function__(*args, **kwargs)


def call(function, args, kwargs, used):
    name = getattr(function, "__name__", "")
    if isinstance(function, torch._ops.OpOverload):  # what is called here has come through a dispatch mode
        return function(*args, **kwargs)
    if name in ("__get__", "__set__"):
        return attribute(function, args, kwargs)
    if name in ("to", "cpu", "cuda", "pin_memory"):
        return move(name, *args, **kwargs)
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if name == "get_device" and where(tensors[0]) is not None:
        return -1 if where(tensors[0]) == CPU else where(tensors[0]).index
    if name == "numpy" and (where(tensors[0]) or CPU).type == "cuda":
        raise TypeError(f"can't convert {where(tensors[0])} device type tensor to numpy. Use Tensor.cpu() first")
    device = kwargs.get("device")
    device = None if device is None else normal(device)
    if device is None:
        device = common_device(name, tensors)
    elif device.type == "meta":
        return function(*args, **kwargs)
    else:
        kwargs["device"] = CPU  # also for one like a tensor on the meta device
    if not tensors and device is None:
        device = CPU  # made by a factory that was told nothing
    if device is not None:
        used.add(str(device))
    return put(device, function(*args, **kwargs))


def attribute(function, args, kwargs):
    owner, what, tensor = function.__self__, getattr(function.__self__, "__name__", ""), args[0]
    if function.__name__ == "__set__":
        function(*args, **kwargs)
        if what == "data":
            tensor.played_device = where(args[1])
        return None
    if what == "device":
        return where(tensor) or function(*args, **kwargs)
    if what == "is_cuda":
        return (where(tensor) or CPU).type == "cuda"
    return put(where(tensor), owner.__get__(*args[:1]))


def move(name, tensor, *args, copy=False, **kwargs):
    """`.to(…)`, `.cpu()`, `.cuda()`, `.pin_memory()`."""
    if name == "to":
        others = [args[0], *args[1:]] if args and isinstance(args[0], torch.Tensor) else None
        device, dtype, _, layout = torch._C._nn._parse_to(*args, **kwargs)
        device = where(others[0]) if others else device
    else:
        device, dtype, layout = {"cpu": CPU, "cuda": args[0] if args else "cuda", "pin_memory": CPU}[name], None, None
    target = where(tensor) if device is None else normal(device)
    if target != where(tensor) or copy or name == "pin_memory":  # another memory: never the same tensor
        tensor = torch.clone(tensor)
        tensor.played_device = target
    if dtype is not None or layout is not None:
        tensor = tensor.to(dtype or tensor.dtype, memory_format=layout or torch.preserve_format)
    return put(target, tensor)


def common_device(name, tensors):
    """The device of the tensors of one operation; RuntimeError where there are two, as torch has it."""
    if name.startswith("_foreach_"):  # torch sorts a list by device first; each tensor keeps its own
        return None
    if name in ("copy_", "backward", "_has_compatible_shallow_copy_type"):
        return where(tensors[0])
    if name in ("__getitem__", "__setitem__", "index_select") and where(tensors[0]) is not None:
        others = {where(each) for each in tensors[1:]} - {None, CPU, where(tensors[0])}
        devices = [where(tensors[0]), *others]  # an index may be on the CPU
    else:
        devices = list({where(each) for each in tensors if where(each) is not None})
        if len(devices) > 1:  # a number on the CPU goes with everything
            devices = list({where(each) for each in tensors if where(each) not in (None, CPU) or each.dim()} - {None})
    if len(devices) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices in {name}: {devices}"
        )
    return devices[0] if devices else None


def play_torch_cuda(patch, num_gpus, num_of_nvml):
    """What the course asks torch.cuda, answered for `num_gpus` A100s on each of which a library holds 512 bytes.

    `device_count` answers as in torch 2.11: with NVML's number, which in MIG mode is larger than CUDA's.
    """
    state = threading.local()

    def current():
        return getattr(state, "device", 0)

    def set_device(device):
        index = device if isinstance(device, int) else torch.device(device).index or 0
        assert 0 <= index < num_gpus, f"CUDA error: invalid device ordinal {index}"
        state.device = index

    def check(device=None):
        if device is not None and not isinstance(device, int):
            assert torch.device(device).type == "cuda", f"Expected a cuda device, but got: {device}"

    properties = types.SimpleNamespace(
        name=machines.A100[0], multi_processor_count=108, max_threads_per_multi_processor=2048, total_memory=80 * GIB
    )
    answers = {
        "is_available": lambda: True, "is_initialized": lambda: True, "device_count": lambda: num_of_nvml,
        "current_device": current, "set_device": set_device, "synchronize": check, "empty_cache": lambda: None,
        "memory_allocated": lambda device=None: 512, "max_memory_allocated": lambda device=None: 512,
        "reset_peak_memory_stats": check, "_sleep": lambda cycles: None,
        "mem_get_info": lambda device=None: (40 * GIB, 80 * GIB),
        "get_device_name": lambda device=None: machines.A100[0], "get_device_capability": lambda device=None: (8, 0),
        "get_device_properties": lambda device=None: properties,
        "is_bf16_supported": lambda including_emulation=True: True,
        "set_per_process_memory_fraction": lambda fraction, device=None: None,
        "CUDAGraph": Graph, "graph": lambda graph: contextlib.nullcontext(),
        "Stream": Stream, "Event": Event, "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": lambda device=None: Stream(device),
    }  # fmt: skip
    for name, answer in answers.items():
        assert hasattr(torch.cuda, name)
        patch.setattr(torch.cuda, name, answer)
    patch.setattr(torch.nn.parallel.comm, "scatter", scatter)

    def has_context(index):
        assert 0 <= index < num_gpus, f"hasPrimaryContext expects a valid device index, but got device_index={index}"
        return index == current()

    patch.setattr(torch._C, "_cuda_hasPrimaryContext", has_context)
    patch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
    patch.setattr(torch._C, "_cuda_getDeviceCount", lambda: num_gpus)
    patch.setattr(torch.cuda.random, "device_count", torch.cuda.device_count)  # which it took by name
    patch.setattr(torch.cuda, "default_generators", tuple(torch.Generator() for _ in range(num_gpus)))
    usual = torch.Generator
    patch.setattr(torch, "Generator", type("Generator", (), {"__new__": lambda cls, device="cpu": usual()}))
    patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    patch.setattr(torch.accelerator, "current_stream", lambda device=None: Stream(device))
    autocast = torch.amp.autocast_mode.autocast
    begin = autocast.__init__

    def begin_on_cpu(self, device_type, *args, **kwargs):
        begin(self, "cpu", *args, **kwargs)

    patch.setattr(autocast, "__init__", begin_on_cpu)


def scatter(tensor, gpus, chunk_sizes=None, dim=0, streams=None):
    """How DataParallel gives each GPU its part, which C++ does."""
    return [move("to", part, f"cuda:{gpu}", copy=True) for gpu, part in zip(gpus, tensor.chunk(len(gpus), dim))]


class Stream:
    stream_id, device_index, device_type = 0, 0, 1

    def __init__(self, device=None, priority=0):
        self.device = device

    def synchronize(self):
        pass

    def wait_stream(self, other):
        pass

    def query(self):
        return True

    def wait_event(self, event):
        pass

    def record_event(self, event=None):
        return event or Event()

    def is_capturing(self):
        return False


class Graph:
    def replay(self):
        pass


class Event:
    def __init__(self, enable_timing=False):
        pass

    def record(self, stream=None):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return 1.0


def played(num_gpus, worker, *args, backend="auto", used=None, **kwargs):
    """In a worker of a group of gloo: run `worker` on a node of `num_gpus` A100s; results come back on the CPU.

    The course chooses the backend there, as `launch(…, backend=backend)` would. Arguments arrive on the CPU. With NCCL,
    the group follows NCCL's rules. The names of devices and backends that the worker used are added to `used`.
    """
    used = set() if used is None else used
    put(CPU, (args, kwargs))
    with PlayedGpus(num_gpus) as gpus:
        gpus.used = used
        chosen = hardware.choose_backend(int(os.environ["WORLD_SIZE"]), backend).backend
        bound = hardware.rank_device() if chosen == "nccl" else None
        with PlayedNccl(where, COMBINED if bound else "gloo", bound, used):
            return tree_map(
                lambda each: each.cpu() if isinstance(each, torch.Tensor) else each, worker(*args, **kwargs)
            )


def on_machine(num_gpus, worker, *args, world_size=None, backend="auto", timeout=30, on=None, used=None, **kwargs):
    """Launch `worker` on a node with `num_gpus` simulated GPUs, with the backend that `launch` would take there.

    The ranks on other machines, `on=…`, are ranks of this one. `used`, if given, gains the GPUs and the backends used.
    """
    joins = "gloo" if backend else None
    debug = kwargs.pop("debug", False)
    with tempfile.TemporaryDirectory() as folder:
        call = num_gpus, worker, args, kwargs | {"backend": backend}, folder
        try:
            return launch(call_with, *call, world_size=world_size, backend=joins, timeout=timeout, debug=debug)
        finally:
            for path in Path(folder).iterdir() if used is not None else ():
                used |= set(json.loads(path.read_text()))


def call_with(num_gpus, worker, args, kwargs, folder):
    """Run `worker`; leave what it used in a file."""
    used = set()
    try:
        return played(num_gpus, worker, *args, used=used, **kwargs)
    finally:
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            json.dump(sorted(used), file)
