"""GPU information from NVIDIA's management library (NVML), without touching CUDA.

A process that has initialised CUDA cannot fork workers that use it, so everything needed *before* workers start comes
from NVML, the library behind `nvidia-smi`.
"""

import contextlib
import functools
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from . import builds

_ROOT = Path("/")


@dataclass(frozen=True)
class GPU:
    """One visible GPU, or a MIG slice of one; `index` is torch's: this is `cuda:{index}`.

    Memory is in bytes, 0 if the driver does not report it.
    """

    index: int
    name: str
    uuid: str
    memory_bytes: int
    free_bytes: int
    compute_capability: tuple[int, int]
    driver: str


_NO_LIBRARY = (
    "an NVIDIA GPU is here without NVML, the library behind nvidia-smi, so the CPU is used; start the container with "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
)


@functools.cache
def _nvml():
    """The initialised `pynvml` module and None, or None and the reason why it is missing.

    NVML stays initialised until the process ends: initialising it takes tens of milliseconds on a node of eight GPUs.
    """
    try:
        import pynvml
    except ImportError:
        return None, "the package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absent = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        if error.value not in absent:
            return None, f"the NVIDIA driver does not answer ({error})"
        # A machine without a driver, such as a laptop, is no problem to report.
        return None, _NO_LIBRARY if any((_ROOT / "dev").glob("nvidia[0-9]*")) else None
    return pynvml, None


def gpus() -> tuple[GPU, ...]:
    """The GPUs this process may use, in torch's order: `gpus()[i]` is `cuda:i`.

    Empty without an NVIDIA driver, with a torch built without CUDA, and if the driver is too old for that torch. A GPU
    too old for it ends the list. `problem()` gives the reason in these cases.
    """
    return _survey()[0]


def problem() -> str | None:
    """Why a GPU of this machine cannot be used and what to do about it, or None if all is well."""
    return _survey()[1]


def newest_cuda() -> str:
    """The newest version of CUDA that the installed driver runs: "12.4"."""
    newest = _nvml()[0].nvmlSystemGetCudaDriverVersion_v2()  # 12040 means 12.4
    return f"{newest // 1000}.{newest % 1000 // 10}"


def _survey() -> tuple[tuple[GPU, ...], str | None]:
    nvml, reason = _nvml()
    if nvml is None:
        return (), reason
    try:
        return _ask(nvml)
    except nvml.NVMLError as error:  # for example a GPU that has fallen off the bus
        return (
            (),
            f"a GPU does not answer ({error}), so the CPU is used; `nvidia-smi` tells which, restart this machine "
            "or have it reset",
        )


def _ask(nvml) -> tuple[tuple[GPU, ...], str | None]:
    handles = visible_handles()
    if not handles:
        return (), _why_none_is_visible(nvml)
    import torch  # takes seconds, and a machine without a GPU does not need it

    driver, newest, found = nvml.nvmlSystemGetDriverVersion(), newest_cuda(), []
    visible = [_gpu(nvml, handle, index, driver) for index, handle in enumerate(handles)]
    if torch.version.cuda is None:
        return (), f"this torch was built without CUDA, so it uses the CPU only; {_cure(visible)}"
    if int(newest.split(".")[0]) < int(torch.version.cuda.split(".")[0]):
        return (), _driver_problem(visible, newest, torch.version.cuda)
    for gpu in visible:
        reason = _gpu_problem(gpu, torch.cuda.get_arch_list())
        if reason:  # stop: skipping one would shift the later indices
            break
        found.append(gpu)
    return tuple(found), reason


def memory_of_processes() -> dict[int, int]:
    """The GPU memory of each process on the visible GPUs, {pid: bytes}, except those the driver hides."""
    nvml, _ = _nvml()
    held = {}
    if nvml is None:
        return held
    with contextlib.suppress(nvml.NVMLError):  # a GPU that has fallen off the bus
        for handle in visible_handles():
            with contextlib.suppress(nvml.NVMLError):
                for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                    held[process.pid] = held.get(process.pid, 0) + (process.usedGpuMemory or 0)
    return held


def _all_handles(nvml) -> list:
    """NVML's handles of the machine's whole GPUs, in bus order, without those a job was not given."""
    handles = []
    for i in range(nvml.nvmlDeviceGetCount()):
        with contextlib.suppress(nvml.NVMLError_NoPermission):
            handles.append(nvml.nvmlDeviceGetHandleByIndex(i))
    return handles


def _why_none_is_visible(nvml) -> str | None:
    handles = _all_handles(nvml)
    if not handles:
        return None
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not any(_slices(nvml, handle) != [] for handle in handles):
        return (
            "the GPU is in MIG mode and has no slice, so the CPU is used; whoever runs this machine can make one with "
            "`nvidia-smi mig -cgi … -C`"
        )
    return f"CUDA_VISIBLE_DEVICES={wanted!r} leaves no GPU visible" if wanted is not None else None


def _gpu(nvml, handle, index: int, driver: str) -> GPU:
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        total, free = memory.total, memory.free
    except nvml.NVMLError_NotSupported:  # a GPU that shares the machine's memory
        host = psutil.virtual_memory()
        total, free = host.total, host.available
    except nvml.NVMLError_NoPermission:
        total, free = 0, 0
    physical = handle
    if nvml.nvmlDeviceGetUUID(handle).startswith("MIG-"):  # a slice has no compute capability of its own
        physical = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    return GPU(
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        uuid=nvml.nvmlDeviceGetUUID(handle),
        memory_bytes=total,
        free_bytes=free,
        compute_capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(physical)),
        driver=driver,
    )


def visible_handles() -> list:
    """NVML's handles of the GPUs that CUDA_VISIBLE_DEVICES leaves visible, in CUDA's order.

    The rules are CUDA's (Programming Guide, "CUDA Environment Variables"): indices or UUIDs, which may be abbreviated
    to a unique prefix; the first invalid entry ends the list.
    """
    nvml, _ = _nvml()
    if nvml is None:
        return []
    handles = _all_handles(nvml)
    if os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        # CUDA's default order puts the fastest first by an unpublished heuristic; here it is cores times clock. Equal
        # GPUs keep bus order, as in CUDA.
        handles.sort(key=lambda handle: _speed(nvml, handle), reverse=True)
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return _as_cuda_has_them(nvml, handles)
    entries = [entry.strip() for entry in wanted.split(",")]
    if entries[0].startswith("MIG-"):  # a CUDA process uses one MIG slice, the first named
        try:
            return [nvml.nvmlDeviceGetHandleByUUID(entries[0])]
        except nvml.NVMLError:
            return []
    uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
    chosen = []
    for entry in entries:
        if entry.startswith("GPU-"):
            matches = [i for i, uuid in enumerate(uuids) if uuid.startswith(entry)]
        else:
            matches = [int(entry)] if entry.isdecimal() and int(entry) < len(handles) else []
        if len(matches) != 1:
            break
        if matches[0] in chosen:  # CUDA refuses a list that names a GPU twice
            return []
        chosen.append(matches[0])
    return _as_cuda_has_them(nvml, [handles[i] for i in chosen])


def _as_cuda_has_them(nvml, handles) -> list:
    """The GPUs of `handles` that a CUDA process sees: if one is cut into MIG slices, its first slice alone.

    The rule is NVIDIA's (MIG User Guide, "CUDA Device Enumeration"): a process uses one slice and no whole GPU beside
    it.
    """
    slices = [_slices(nvml, handle) for handle in handles]
    first = next((each[0] for each in slices if each), None)
    if first is not None:
        return [first]
    return [handle for handle, each in zip(handles, slices) if each is None]


def _slices(nvml, handle) -> list | None:
    """The MIG slices of a GPU in MIG mode; None if it is not in that mode."""
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return None
    except nvml.NVMLError:  # a GPU without MIG
        return None
    found = []
    for i in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, i))
        except nvml.NVMLError:  # an empty slot, or one we may not use
            continue
    return found


def _speed(nvml, handle) -> int:
    try:
        cores = nvml.nvmlDeviceGetNumGpuCores(handle)
        return cores * nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
    except nvml.NVMLError:
        return 0


def _driver_problem(found: list[GPU], newest: str, built: str) -> str:
    return (
        f"the NVIDIA driver {found[0].driver} is too old: it runs CUDA {newest} and this torch was built for CUDA "
        f"{built}, so the CPU is used; {_cure(found)}"
    )


def _cure(found: list[GPU]) -> str:
    """What to do if the installed torch does not run on these GPUs."""
    choice = builds.choose(found[0].driver, ["{}.{}".format(*gpu.compute_capability) for gpu in found])
    if choice.build is None:
        return choice.advice
    return f"`make lab CUDA={choice.build.cuda}` installs {choice.build.name}, which runs here"


def _gpu_problem(gpu: GPU, architectures: list[str]) -> str | None:
    """Why no kernel of this torch runs on this GPU; `architectures` is torch's get_arch_list()."""
    kernels, portable = [], []
    for name in architectures:  # "sm_90" is machine code, "compute_90" is compiled for later GPUs
        kind, _, number = name.partition("_")
        digits = number.rstrip("af")
        capability = (int(digits[:-1]), int(digits[-1]))
        (portable if kind == "compute" else kernels).append(capability)
    own = gpu.compute_capability
    # Machine code runs on the same major version from its own minor version upwards.
    if any(have[0] == own[0] and have[1] <= own[1] for have in kernels):
        return None
    if not kernels or any(have <= own for have in portable):
        return None
    have = f"{gpu.name} has compute capability {own[0]}.{own[1]}"
    if own < min(kernels):
        oldest = min(kernels)
        return (
            f"{have}, too old for this torch, which begins at {oldest[0]}.{oldest[1]}, so it is not used; "
            f"{_cure([gpu])}"
        )
    return f"{have}, for which this torch has no kernels, so it is not used; {_cure([gpu])}"


def links() -> list[list[str]]:
    """The links between `gpus()`: a square table of words, "-" on its diagonal.

    From fast to slow: "NVLink"; "PCIe" (only switches in between); "host" (through the CPU); "between CPUs" (through
    the CPU and the link to another one).
    """
    nvml, _ = _nvml()
    count = len(gpus())
    handles = visible_handles()[:count] if count else []
    return [["-" if a is b else _link(nvml, a, b) for b in handles] for a in handles]


def _link(nvml, first, second) -> str:
    try:
        status = nvml.nvmlDeviceGetP2PStatus(first, second, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if status == nvml.NVML_P2P_STATUS_OK:
            return "NVLink"
        level = nvml.nvmlDeviceGetTopologyCommonAncestor(first, second)
    except nvml.NVMLError:
        return "unknown"
    if level <= nvml.NVML_TOPOLOGY_MULTIPLE:
        return "PCIe"
    return "host" if level <= nvml.NVML_TOPOLOGY_NODE else "between CPUs"
