"""What the operating system has to do with a process's memory: pages at their first touch, and a limit."""

import contextlib
import ctypes
import resource
from dataclasses import dataclass

import psutil
import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # the names that glibc's mallopt() has for its settings


def keep_freed_memory():
    """From now on the C library keeps what this process frees, up to 2 GiB, and hands it out again."""
    _set(_MMAP_MAX, 0)  # no block is a piece of its own from the system, which would go back whole
    _set(_TRIM_THRESHOLD, 2**31 - 1)


def return_freed_memory():
    """From now on a freed block of 64 KiB or more goes back to the system at once, so that a
    limit does not count it.
    """
    _set(_MMAP_THRESHOLD, 65536)


def _set(setting, value):
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # Linux's C library, glibc
        libc.mallopt(setting, value)


@dataclass
class PageFaults:
    """`num_faults` of this process inside a `with` block of `page_faults`, and the seconds that the
    system worked for it.
    """

    num_faults: int = 0
    system_s: float = 0.0


@contextlib.contextmanager
def page_faults():
    """Count the page faults, and the CPU seconds spent in the system, of this process and its
    threads inside the block.
    """
    found, before = PageFaults(), resource.getrusage(resource.RUSAGE_SELF)
    yield found
    after = resource.getrusage(resource.RUSAGE_SELF)
    found.num_faults = after.ru_minflt - before.ru_minflt
    found.system_s = after.ru_stime - before.ru_stime


def allow(num_bytes, device):
    """From now on this process may take so many bytes more: of the GPU's memory, or of the host's
    where `device` is a CPU.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()  # what is cached would be a gift beyond the allowance
        total = torch.cuda.get_device_properties(device).total_memory
        share = (torch.cuda.memory_reserved(device) + num_bytes) / total
        torch.cuda.set_per_process_memory_fraction(share, device)
    else:
        held = psutil.Process().memory_info().data
        resource.setrlimit(resource.RLIMIT_DATA, (held + num_bytes, held + num_bytes))
