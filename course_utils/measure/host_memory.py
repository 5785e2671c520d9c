"""Host memory as the operating system manages it: page faults at first touch, and a limit."""

import contextlib
import ctypes
import resource
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # constants of glibc's mallopt()


def keep_freed_memory() -> None:
    """Make the C library keep up to 2 GiB of freed memory in this process and reuse it."""
    _set(_MMAP_MAX, 0)  # no block gets its own mapping, which would be unmapped when freed
    _set(_TRIM_THRESHOLD, 2**31 - 1)


def return_freed_memory() -> None:
    """Make the C library return each freed block of 64 KiB or more at once, so that a limit does not count it."""
    _set(_MMAP_THRESHOLD, 65536)


def _set(setting, value):
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # only glibc has it
        libc.mallopt(setting, value)


@dataclass
class PageFaults:
    """The counts of a `page_faults` block: `num_faults` of this process, and CPU seconds spent in the kernel."""

    num_faults: int = 0
    system_s: float = 0.0


@contextlib.contextmanager
def page_faults() -> Iterator[PageFaults]:
    """Count page faults and CPU seconds in the kernel for this process and its threads inside the block."""
    found, before = PageFaults(), resource.getrusage(resource.RUSAGE_SELF)
    yield found
    after = resource.getrusage(resource.RUSAGE_SELF)
    found.num_faults = after.ru_minflt - before.ru_minflt
    found.system_s = after.ru_stime - before.ru_stime


def allow(num_bytes: int, device: torch.device | str) -> int:
    """Limit this process to `num_bytes` more memory, and return the bytes that it holds already.

    It is GPU memory that PyTorch's allocator has reserved, or host memory if `device` is a CPU.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()  # cached memory would add to the limit
        total = torch.cuda.get_device_properties(device).total_memory
        held = torch.cuda.memory_reserved(device)
        torch.cuda.set_per_process_memory_fraction((held + num_bytes) / total, device)
    else:
        held = psutil.Process().memory_info().data
        resource.setrlimit(resource.RLIMIT_DATA, (held + num_bytes, held + num_bytes))
    return held
