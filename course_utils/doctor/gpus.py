"""Checks the driver, the GPUs and the links between them through NVML, without initialising CUDA."""

import os
from collections import Counter
from pathlib import Path

import psutil

from .. import hardware
from ..hardware import nvml
from ..hardware.description import count
from . import FAIL, OK, WARN, Line

PCI = Path("/sys/bus/pci/devices")
NVIDIA, DISPLAYS = "0x10de", ("0x0300", "0x0302")
GIB = 2**30
CURES = {  # words in NVML's error messages: what to do
    "mismatch": "restart this machine: the driver was updated while it ran",
    "not installed": "run `make install`",
}


def driver():
    reason, found = nvml.problem(), nvml.gpus()
    if os.environ.get("COURSE_DEVICE") == "cpu":
        yield Line("driver", OK, "not looked at, since COURSE_DEVICE=cpu keeps the course off the GPU")
    elif reason:
        said, _, cure = reason.rpartition("; ")
        if not said:
            said, cure = (
                reason,
                next(
                    (cure for words, cure in CURES.items() if words in reason),
                    "restart this machine, or ask whoever runs it to",
                ),
            )
        is_chosen = reason.startswith("CUDA_VISIBLE_DEVICES")
        yield Line(
            "driver",
            WARN if is_chosen or found else FAIL,
            said,
            "unset it, unless you mean to use the CPU" if is_chosen else cure,
        )
    elif not found and num_on_the_bus():
        yield Line(
            "driver",
            WARN,
            "an NVIDIA GPU is in this machine, and no driver answers, so that everything runs on the CPU",
            "install NVIDIA's driver or load it (`sudo modprobe nvidia`); start a container with --gpus all",
        )
    elif not found:
        yield Line("driver", OK, "no NVIDIA GPU is here: everything runs on the CPU")
    else:
        yield Line("driver", OK, f"{found[0].driver}, which runs CUDA up to {nvml.newest_cuda()}")


def num_on_the_bus():
    """Return how many of NVIDIA's GPUs are on the PCI bus, with or without a driver."""
    num_gpus = 0
    for device in PCI.glob("*") if PCI.is_dir() else ():
        try:
            kind, vendor = ((device / name).read_text().strip() for name in ("class", "vendor"))
        except OSError:
            continue
        num_gpus += vendor == NVIDIA and kind.startswith(DISPLAYS)
    return num_gpus


def free():
    """Check whether other processes use the GPUs.

    A screen may take 1.5 GiB or 10 %. GPUs that share the machine's memory are not checked.
    """
    found = wanted()
    used = {gpu: gpu.memory_bytes - gpu.free_bytes for gpu in found}
    shares_memory = {gpu for gpu in found if gpu.memory_bytes == psutil.virtual_memory().total}
    busy = [gpu for gpu in found if gpu not in shares_memory and used[gpu] > max(0.1 * gpu.memory_bytes, 1.5 * GIB)]
    names = Counter(gpu.name for gpu in found if gpu not in busy)
    if names:
        yield Line("GPUs", OK, ", ".join(f"{number} × {name} free" for name, number in names.items()))
    for gpu in busy:
        others = f", or CUDA_VISIBLE_DEVICES to leave it out of {len(found)}" if len(found) > 1 else ""
        yield Line(
            "GPUs",
            WARN,
            f"{gpu.name}, cuda:{gpu.index}, has {gpu.free_bytes / GIB:.1f} of {gpu.memory_bytes / GIB:.1f} GiB free",
            f"use `nvidia-smi` to see whose processes use it{others}",
        )


def wanted():
    """Return the GPUs that the course uses: () if COURSE_DEVICE is cpu."""
    return hardware.gpus() if os.environ.get("COURSE_DEVICE") != "cpu" else ()


def links():
    table = nvml.links()
    found = Counter(table[i][j] for i in range(len(table)) for j in range(i))
    if found:
        said = ", ".join(f"{count(number, 'pair')} {_MEANS[link]}" for link, number in found.items())
        yield Line("links", OK, said)


_MEANS = {"NVLink": "over NVLink", "PCIe": "over PCIe", "host": "through the CPU", "between CPUs": "from CPU to CPU",
          "unknown": "over a link that the driver does not name"}  # fmt: skip
CHECKS = (driver, free, links)
