"""The driver, the GPUs and how they are joined, asked of NVML: CUDA is not touched."""

from collections import Counter

from .. import hardware
from ..hardware import nvml
from . import FAIL, OK, WARN, Line


def driver():
    reason, found = nvml.problem(), hardware.gpus()
    if reason:
        said, _, cure = reason.rpartition("; ")
        chosen = reason.startswith("CUDA_VISIBLE_DEVICES")
        yield Line("driver", WARN if chosen or found else FAIL, said or reason, cure if said else "unset it" if chosen else "")
    elif not found:
        yield Line("driver", OK, "no NVIDIA GPU is here: everything runs on the CPU")
    else:
        newest = nvml.newest_cuda()
        yield Line("driver", OK, f"{found[0].driver}, which runs CUDA up to {newest}")


def free():
    """GPUs that others use already. A screen takes some of a laptop's."""
    found = hardware.gpus()
    if not found:
        return
    busy = [gpu for gpu in found if gpu.memory_bytes and gpu.free_bytes < 0.8 * gpu.memory_bytes]
    if len(busy) < len(found):
        names = Counter(gpu.name for gpu in found if gpu not in busy)
        yield Line("GPUs", OK, ", ".join(f"{number} × {name} free" for name, number in names.items()))
    for gpu in busy:
        yield Line("GPUs", WARN, f"{gpu.name}, cuda:{gpu.index}, has {gpu.free_bytes / 2**30:.0f} of {gpu.memory_bytes / 2**30:.0f} GiB free",
                   "`nvidia-smi` names the processes that use it; CUDA_VISIBLE_DEVICES leaves it out")  # fmt: skip


def links():
    table = nvml.links()
    found = Counter(table[i][j] for i in range(len(table)) for j in range(i))
    if found:
        said = ", ".join(f"{number} {'pair' if number == 1 else 'pairs'} {_MEANS[link]}" for link, number in found.items())
        yield Line("links", OK, said)


_MEANS = {"NVLink": "over NVLink", "PCIe": "over PCIe", "host": "through the CPU", "between CPUs": "from CPU to CPU",
          "unknown": "that the driver says nothing of"}  # fmt: skip
CHECKS = (driver, free, links)
