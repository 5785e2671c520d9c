"""What CUDA is asked in a process that uses it, or is about to. Nothing here begins to use it."""

import sys


def full_precision():
    """Have a GPU compute float32 with all of its 24 bits, in this process.

    For matrix products torch does so by itself; cuDNN's convolutions keep 11 bits (TF32) from Ampere on, unless told.
    Then whoever compares two ways to compute the same sees the hardware's rounding. TF32 has its place in chapter 04.
    """
    import torch

    # The newer name, fp32_precision, would make torch's own readers of this one fail.
    torch.backends.cudnn.allow_tf32 = False


def gpus_in_use():
    """Return the `torch.device`s that this process has begun to use: those on which CUDA has made a context for it.

    To wait for another would begin to use it, which costs half a gigabyte. A process that has not touched CUDA has
    none.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    # torch has no public word for it, and the allocator's, memory_reserved, takes a tenth of a millisecond.
    indices = range(torch.cuda.device_count())
    return [torch.device("cuda", i) for i in indices if torch._C._cuda_hasPrimaryContext(i)]


def gpus_are_well():
    """Whether this process can still use its GPUs. Does not wait: after an error in a kernel, no call reaches them."""
    try:
        for gpu in gpus_in_use():
            sys.modules["torch"].cuda.current_stream(gpu).query()
    except RuntimeError:
        return False
    return True


def wait_for_gpus():
    """Wait until every GPU in use has done all that it was asked to do."""
    for gpu in gpus_in_use():
        sys.modules["torch"].cuda.synchronize(gpu)
