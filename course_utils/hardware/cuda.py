"""CUDA queries for a process that uses it or is about to; nothing here initialises it."""

import sys

from . import nvml


def full_precision():
    """Make GPUs compute float32 with all 24 bits of precision in this process.

    From Ampere on, cuDNN's convolutions keep 11 bits (TF32) by default. So do matrix products in NVIDIA's containers,
    which set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1. With full precision, two ways of computing the same differ by float32
    rounding alone. TF32 is a topic of chapter 04.
    """
    import torch

    # With the newer name, fp32_precision, torch's own code that reads this one would fail.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def gpus_in_use():
    """Return the `torch.device`s on which this process has a CUDA context.

    Waiting for any other GPU would create one, which costs half a gigabyte. A process that has not touched CUDA has
    none.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    # torch has no public API for this; the allocator's memory_reserved takes a tenth of a millisecond.
    return [torch.device("cuda", i) for i in range(num_of_cuda()) if torch._C._cuda_hasPrimaryContext(i)]


def num_of_cuda():
    """Return the number of GPUs that CUDA gives this process, or would give it.

    torch.cuda.device_count() is larger where GPUs are in MIG mode: it counts NVML's GPUs, of which CUDA enumerates one
    slice. torch 2.15 does so until CUDA is initialised, torch 2.11 also afterwards.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return len(nvml.gpus())
    return torch._C._cuda_getDeviceCount()


def gpus_are_well():
    """Whether this process can still use its GPUs; does not wait, since after a kernel error every call fails."""
    try:
        for gpu in gpus_in_use():
            sys.modules["torch"].cuda.current_stream(gpu).query()
    except RuntimeError:
        return False
    return True


def wait_for_gpus():
    """Wait until every GPU in use has finished its queued work."""
    for gpu in gpus_in_use():
        sys.modules["torch"].cuda.synchronize(gpu)
