"""What chapter 00 prints about the machine, row by row, and what each chapter can show on it."""

import shutil

import psutil

from . import nvml
from .host import cpu_name, memory_bytes, num_cores

_ON_THE_CPU = "on the CPU: 4 workers need a GPU each"  # where a chapter calls `cpu_unless_gpus`
_NO_GPU = "processes on the CPU, on any machine"  # where it calls `keep_to_cpu`
_MACHINES = "groups of processes stand for machines"


def full_lines(found: tuple[nvml.GPU, ...], why_no_gpu: str, default_note: str, four_note: str) -> list[str]:
    """The machine in rows, then what each chapter shows on it.

    `found` are the GPUs the course uses, `why_no_gpu` says why if there are none, and `default_note` says where
    `launch` places workers by default.
    """
    import torch
    import torch.distributed as dist

    rows = [
        ("CPU", f"{count(num_cores(), 'core')} ({cpu_name()})"),
        ("Memory", f"{gib(memory_bytes())}, {gib(psutil.virtual_memory().available)} free"),
    ]
    for gpu in found:
        major, minor = gpu.compute_capability
        rows.append(
            (
                f"cuda:{gpu.index}",
                f"{gpu.name}, {memory_of(gpu)}{f' ({gib(gpu.free_bytes)} free)' * bool(gpu.memory_bytes)}, "
                f"compute capability {major}.{minor}",
            )
        )
    if not found:
        rows.append(("GPU", why_no_gpu))
    if len(found) > 1:
        rows += [(f"  from cuda:{i}", _links_of(i, row)) for i, row in enumerate(nvml.links())]
    nccl = torch.version.cuda is not None and dist.is_nccl_available()
    rows += [
        ("torch", torch.__version__),
        ("CUDA", _cuda_versions(found, torch.version.cuda)),
        ("NCCL", ".".join(map(str, torch.cuda.nccl.version())) if nccl else "not in this torch"),
        ("/dev/shm", _shared_memory()),
        ("Backends", _backends(len(found))),
    ]
    lines = [f"{name:<12}  {what}" for name, what in rows]
    rows = [(f"{part:<5}{chapters}", what) for part, chapters, what in _chapters(len(found), default_note, four_note)]
    return [*lines, "", "What each chapter shows on this machine", *(f"{name:<12}  {what}" for name, what in rows)]


def _links_of(i: int, row: list[str]) -> str:
    return ", ".join(f"{kind} to cuda:{j}" for j, kind in enumerate(row) if j != i)


def _cuda_versions(found: tuple[nvml.GPU, ...], built: str | None) -> str:
    if built is None:
        return "none: this torch was built for the CPU"
    return f"{built}, driver {found[0].driver}" if found else f"{built}, unused without a GPU"


def _shared_memory() -> str:
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        return "none on this system"
    text = f"{gib(usage.total)}, {gib(usage.free)} free"
    if usage.total < 2**30:  # a container's default is 64 MB
        text += ": small, so data-loading workers may fail; start the container with --ipc=host"
    return text


def _backends(num_gpus: int) -> str:
    if num_gpus == 0:
        return "gloo on the CPU; NCCL needs GPUs"
    return f"NCCL with up to {count(num_gpus, 'worker')}; gloo with any number, on GPU or CPU"


def _chapters(num_gpus: int, default_note: str, four_note: str) -> list[tuple[str, str, str]]:
    """A list of (part, chapters, what runs) for all chapters.

    Every method gives correct results on any machine, so this is about timings.
    """
    if num_gpus == 0:
        cores = count(num_cores(), "core")
        one = [
            ("I", "01", "copies within the CPU's memory; GPU copies are published numbers"),
            ("", "02", "GPU programs in a simulator, one thread after another; no GPU times"),
            ("", "03, 04", "the CPU's step; changes that need a GPU are left out"),
        ]
        several = [
            ("II", "05", f"threads stand for devices; {cores} limit the gain"),
            ("", "06, 07", "the CPU stands for each device: right answers, not speed"),
        ]
    else:
        where = "the GPU" if num_gpus == 1 else "one of the GPUs"
        one = [
            ("I", "01", f"copies between the host and {where}"),
            ("", "02", f"kernels timed on {where}"),
            ("", "03, 04", f"a training step on {where}"),
        ]
        shared = "the one GPU stands for each device: right answers, not speed"
        several = [("II", "05–07", shared if num_gpus == 1 else f"up to {min(num_gpus, 4)} GPUs, a device each")]
    return [*one, *several, *_several_processes(num_gpus, default_note, four_note)]


def _several_processes(num_gpus, default_note, four_note):
    """The rows of parts III to V."""
    if 0 < num_gpus < 4:
        return [
            ("III", "08, 09", four_note),
            ("", "10, 12", _ON_THE_CPU),
            ("", "11", default_note),
            ("IV", "13", f"{_ON_THE_CPU}; {_MACHINES}"),
            ("", "14", _NO_GPU),
            ("", "15", _MACHINES),
            ("V", "16, 17", _ON_THE_CPU),
            ("", "18", _NO_GPU),
            ("", "19", "arithmetic, and steps of two workers on the CPU"),
        ]
    return [
        ("III", "08–12", default_note),
        ("IV", "13, 15", _MACHINES),
        ("", "14", _NO_GPU),
        ("V", "16, 17", default_note),
        ("", "18", _NO_GPU),
        ("", "19", "arithmetic, and steps of two workers"),
    ]


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def memory_of(gpu: nvml.GPU) -> str:
    return gib(gpu.memory_bytes) if gpu.memory_bytes else "an unknown amount"


def gib(num_bytes: int) -> str:
    gib = num_bytes / 2**30
    return f"{gib:.0f} GiB" if gib >= 10 else f"{gib:.1f} GiB"
