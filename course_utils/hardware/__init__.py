"""What this node has, and where workers and tensors go on it.

Nothing here initialises CUDA in the calling process, except `rank_device()`, which is for workers. A notebook that has
not touched CUDA can still start workers that use it.
"""

import math
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from . import nvml
from .cuda import full_precision, gpus_are_well, gpus_in_use, num_of_cuda, wait_for_gpus
from .description import count, full_lines, gib, memory_of
from .host import cpu_name, memory_bytes, num_cores, torch_version
from .nvml import GPU, gpus

if TYPE_CHECKING:  # importing torch takes seconds, so not at run time
    import torch

__all__ = [
    "GPU", "Placement", "choose_backend", "cpu_unless_gpus", "default_world_size", "describe", "devices",
    "full_precision", "gpus", "gpus_are_well", "gpus_in_use", "keep_to_cpu", "machine", "num_cores", "num_devices",
    "num_of_cuda", "rank_device", "torch_version", "used", "wait_for_gpus",
]  # fmt: skip

# GPU memory per worker that shares it: CUDA's context alone takes half a GiB.
_LEAST_GIB = 1.5
_NOT_USED = ", GPU not used"
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def _usable_gpus() -> tuple[GPU, ...]:
    """The result of `gpus()`, or none if COURSE_DEVICE=cpu asks for the CPU."""
    wanted = os.environ.get("COURSE_DEVICE", "")
    if wanted not in ("", "cpu", "cuda"):
        raise ValueError(f"COURSE_DEVICE is {wanted!r}; set it to 'cpu' or 'cuda', or unset it")
    found = () if wanted == "cpu" else gpus()
    if wanted == "cuda" and not found:
        raise ValueError(f"COURSE_DEVICE is 'cuda', but {_why_no_gpu()}; set it to 'cpu', or unset it")
    return found


def _why_no_gpu() -> str:
    if os.environ.get("COURSE_DEVICE") == "cpu":
        return "COURSE_DEVICE=cpu keeps the course off the GPU"
    return nvml.problem() or "no NVIDIA GPU was found"


def default_world_size() -> int:
    """The number of workers `launch` starts by default.

    One per visible GPU if there are two or more; otherwise one per core, at least 2 and at most 4. COURSE_MAX_WORKERS
    replaces the 4 and, if set, limits the GPUs too.

    Raises ValueError if COURSE_MAX_WORKERS is not a whole number of 2 or more.
    """
    text = os.environ.get("COURSE_MAX_WORKERS", "").strip()
    if text and (not text.isdecimal() or int(text) < 2):
        raise ValueError(
            f"COURSE_MAX_WORKERS is {text!r}; it must be a whole number, 2 or more, for example COURSE_MAX_WORKERS=8"
        )
    num_gpus = len(_usable_gpus())
    if num_gpus >= 2:
        return min(num_gpus, int(text)) if text else num_gpus
    return max(2, min(num_cores(), int(text or 4)))


@dataclass(frozen=True)
class Placement:
    """Where the workers of one launch run; `note` is the line that announces it.

    The note says which GPUs workers can use: whether they will, is known only to the function that they run.
    `is_here` is false where they run on other machines.
    """

    backend: str | None
    device_type: str
    note: str
    world_size: int
    is_here: bool = True

    def on_cpu(self) -> "Placement":
        """Return the placement of the same workers if all their tensors are on the CPU, where messages go by gloo."""
        return replace(self, device_type="cpu", backend=self.backend and "gloo")

    def on_gpus_with_nccl(self) -> "Placement":
        """Return the placement of the same workers if they compute on GPUs only with NCCL, else on the CPU."""
        return self if self.backend == "nccl" else self.on_cpu()


def choose_backend(world_size: int, backend: str | None = "auto") -> Placement:
    """Choose the backend and the device type for `world_size` workers.

    `"auto"` takes NCCL if each worker has its own GPU, otherwise gloo, which lets workers share a GPU or run on the
    CPU. `None` leaves `init_process_group` to the worker. If sharing would leave less than 1.5 GiB of GPU memory per
    worker, the workers run on the CPU, unless COURSE_DEVICE=cuda.

    Raises ValueError for another backend, and for NCCL with more workers than GPUs.
    """
    if backend not in ("auto", "gloo", "nccl", None):
        raise ValueError(f"backend is {backend!r}; choose 'auto', 'gloo', 'nccl' or None")
    num_gpus = len(_usable_gpus())
    if backend == "nccl" and num_gpus == 0:
        raise ValueError(
            f"backend 'nccl' moves data between GPUs, but {_why_no_gpu()}; "
            "use backend='gloo', or 'auto', which takes what is there"
        )
    if backend == "nccl" and num_gpus < world_size:
        raise ValueError(
            f"backend 'nccl' needs a GPU for each worker, but world_size is {world_size} and "
            f"{count(num_gpus, 'GPU')} {'is' if num_gpus == 1 else 'are'} visible; use "
            f"backend='gloo', which lets workers share a GPU, or world_size={num_gpus}"
        )
    if backend == "auto":
        backend = "nccl" if num_gpus >= world_size else "gloo"
    means = {"nccl": ", with NCCL for GPU tensors", "gloo": ", with gloo", None: ""}[backend]
    workers = count(world_size, "worker")
    too_small = _too_small_to_share(world_size)
    if too_small:
        num_gpus = 0
    if num_gpus == 0:
        note = f"{workers} on the CPU{means.lstrip(',')}{_sharing_of_cores(world_size)}{too_small}"
    elif world_size == 1:
        note = f"{workers} that can use one GPU{means}"
    elif num_gpus > world_size and backend != "nccl":  # each sees all of them
        note = f"{workers} that can use {num_gpus} GPUs{means}"
    elif num_gpus >= world_size:
        note = f"{workers} that can use one GPU each{means}"
    else:
        shared = "one GPU" if num_gpus == 1 else f"{num_gpus} GPUs"
        note = f"{workers} that can share {shared}{means}: right answers, not speed"
    if backend is None:
        note += "; the worker calls init_process_group itself"
    return Placement(backend, "cuda" if num_gpus else "cpu", note, world_size)


def _too_small_to_share(world_size: int) -> str:
    """Why so many workers cannot share the GPUs, in brackets; "" if they can or COURSE_DEVICE=cuda."""
    found = _usable_gpus()
    if not found or world_size <= len(found) or os.environ.get("COURSE_DEVICE") == "cuda":
        return ""
    told = [gpu.memory_bytes for gpu in found if gpu.memory_bytes]
    if not told or min(told) >= math.ceil(world_size / len(found)) * _LEAST_GIB * 2**30:
        return ""
    return f" (they would share {gib(min(told))} of GPU memory, and each needs {_LEAST_GIB} GiB)"


def _sharing_of_cores(world_size: int) -> str:
    cores = num_cores()
    if world_size == 1:
        return ""
    if world_size <= cores:
        return ", one core each"
    most = math.ceil(world_size / cores)
    most_in_words = _WORDS[most] if most < len(_WORDS) else str(most)
    if cores == 1:
        how = f"so all {most_in_words} workers share it"
    elif world_size % cores:
        how = f"so up to {most_in_words} workers share a core"
    else:
        how = f"so {most_in_words} workers share each core"
    return f"; {count(cores, 'core')}, {how}"


def cpu_unless_gpus(world_size: int) -> None:
    """Keep this notebook on the CPU unless each of `world_size` workers can have a GPU of its own.

    For chapters that send what gloo carries between CPU tensors only: workers that share a GPU would compute on the
    CPU, while `launch` and the figures named the GPU. GPUs that stay unused are said in one line.
    """
    if choose_backend(world_size).backend == "nccl":
        return
    found = _usable_gpus()
    if found:
        print(
            f"{count(len(found), 'GPU')} for {count(world_size, 'worker')}, and this chapter needs one for each: "
            "from here on, launch keeps to the CPU"
        )
    os.environ["COURSE_DEVICE"] = "cpu"


def keep_to_cpu() -> None:
    """Keep this notebook on the CPU from here on, and say so in one line where there is a GPU.

    For chapters that compute nothing on GPUs: `launch` and the figures then name what is used.
    """
    if _usable_gpus():
        print("this chapter needs no GPU: from here on, launch keeps to the CPU")
    os.environ["COURSE_DEVICE"] = "cpu"


def rank_device() -> "torch.device":
    """This rank's `torch.device`, made current: `cuda:{local_rank}` or the CPU.

    Ranks that share GPUs take the visible ones in turn. Outside a worker it is `cuda:0` or the CPU. COURSE_DEVICE=cpu
    or =cuda decides, if set.
    """
    import torch

    num_gpus = len(_usable_gpus())
    if num_gpus == 0:
        return torch.device("cpu")
    local_rank = int(os.environ.get("LOCAL_RANK") or os.environ.get("RANK") or 0)
    device = torch.device("cuda", local_rank % num_gpus)
    torch.cuda.set_device(device)
    return device


def devices(n: int) -> "list[torch.device]":
    """A list of `n` devices for one process: different GPUs if there are enough.

    With fewer GPUs they repeat in turn, and without any the CPU appears `n` times: the same code runs and gives the
    same results, only no faster.

    Raises ValueError if `n` is not a positive whole number.
    """
    import torch

    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ValueError(f"n is {n!r}; it must be a whole number of devices, 1 or more")
    num_gpus = len(_usable_gpus())
    if num_gpus == 0:
        return [torch.device("cpu")] * n
    return [torch.device("cuda", i % num_gpus) for i in range(n)]


def num_devices() -> int:
    """The number of workers that can have their own device: GPUs, or cores if no GPU is used."""
    return len(_usable_gpus()) or num_cores()


def machine() -> str:
    """The machine in a few words, for figures: "2 × NVIDIA H200"."""
    found = _usable_gpus()
    return _gpu_names(found) if found else _cpu()


def _cpu() -> str:
    return f"{count(num_cores(), 'CPU core')} ({cpu_name()}){_NOT_USED if gpus() else ', no GPU'}"


def _gpu_names(found: Iterable[GPU]) -> str:
    names = Counter(gpu.name for gpu in found)
    return ", ".join(name if times == 1 else f"{times} × {name}" for name, times in names.items())


def used(*places: "Placement | torch.device") -> str:
    """What a measurement used, for figures: "2 × NVIDIA H200, 2 workers with NCCL".

    Each place is the placement of a launch, or a device of this process. A launch on other machines is named by its
    note. That a GPU was not used is said only where none of the places has one.
    """
    devices = [place for place in places if not isinstance(place, Placement)]
    here = [place for place in places if isinstance(place, Placement) and place.is_here]
    on_gpu = any(place.type == "cuda" for place in devices) or any(place.device_type == "cuda" for place in here)
    cpu = _cpu().removesuffix(_NOT_USED) if on_gpu else _cpu()
    said = [cpu] if any(device.type == "cpu" for device in devices) else []
    indices = sorted({device.index or 0 for device in devices if device.type == "cuda"})
    if indices:
        said.append(_gpu_names(gpus()[i] for i in indices))
    sizes: dict[tuple[str, str | None], set[int]] = {}  # of launches that differ in the number of workers alone
    for place in here:
        sizes.setdefault((place.device_type, place.backend), set()).add(place.world_size)
    for (device_type, backend), found in sizes.items():
        *most, last = map(str, sorted(found))
        workers = f"{', '.join(most)} and {last} workers" if most else count(int(last), "worker")
        means = {"nccl": " with NCCL", "gloo": " with gloo", None: ""}[backend]
        where = cpu if device_type == "cpu" else _gpu_names(gpus()[: max(found)])
        said = [*(each for each in said if each != where), f"{where}, {workers}{means}"]
    used_here = f"this machine: {'; '.join(said)}" if said else ""
    away = dict.fromkeys(place.note for place in places if isinstance(place, Placement) and not place.is_here)
    return "; ".join(filter(None, [used_here, *away]))


def describe(full: bool = False) -> str:
    """This machine in one line, or with `full` all that chapter 00 reads from it.

    If a GPU cannot be used, another line says why and what to install instead.
    """
    note = choose_backend(default_world_size()).note
    if full:
        why = _why_no_gpu()
        lines = full_lines(_usable_gpus(), why[0].upper() + why[1:], note, choose_backend(4).note)
    else:
        lines = [_short_line(note)]
    reason = nvml.problem()
    if reason and not any(reason[1:] in line for line in lines):
        lines.append(f"Note: {reason}.")
    return "\n".join(lines)


def _short_line(note: str) -> str:
    found = _usable_gpus()
    memory = f"{gib(memory_bytes())} of memory"
    if found:
        each = " each" if len(found) > 1 else ""
        memory = f"{memory_of(min(found, key=lambda gpu: gpu.memory_bytes))} of memory{each}"
    return f"{machine()}; {memory}; torch {torch_version()[0]}. By default launch starts {note}."
