"""Versions of one training step: which of them a machine can run, their speed, and their memory."""

import contextlib
import copy
import importlib.util
import shutil
import sysconfig
from pathlib import Path

import torch

from ...measure import intensity, memory


def fast_dtype(device):
    """Return the 16-bit dtype that `device` multiplies in hardware: bfloat16, else a GPU's float16, else None.

    GPUs have float16 since the P100 and bfloat16 since the A100. Some CPUs have bfloat16 instructions.
    """
    if torch.device(device).type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    has_bf16 = any(has for name, has in torch.cpu.get_capabilities().items() if "bf16" in name)
    return torch.bfloat16 if has_bf16 else None


def multiplied_formats(device):
    """Return {name: (autocast's dtype or None, whether TF32 is allowed)} for `device`, float32 first."""
    found, fast = {"float32": (None, False)}, fast_dtype(device)
    if torch.device(device).type == "cuda":  # fp16 is many times slower on most CPUs
        found |= {"TF32": (None, True)} if torch.cuda.get_device_capability(device) >= (8, 0) else {}
        found["fp16"] = torch.float16, True
    return found | ({"bf16": (torch.bfloat16, True)} if fast == torch.bfloat16 else {})


def not_here(device):
    """Return {rung of chapter 04: why it does not run on `device`}.

    On a GPU, torch.compile needs Triton, which begins with Volta, and a C compiler.
    """
    if torch.device(device).type == "cuda":
        if torch.cuda.get_device_capability(device) < (7, 0):
            return {"7 torch.compile": "Triton needs a GPU of compute capability 7.0 or newer"}
        return {} if _compiles() else {"7 torch.compile": "it needs Triton, gcc and Python.h"}
    reasons = {"2 pinned, prefetch": "no GPU to copy to", "7 torch.compile": "too slow to compile for a CPU"}
    return reasons if fast_dtype(device) else {**reasons, "4 mixed precision": "this CPU has no 16-bit instructions"}


def _compiles():
    headers = Path(sysconfig.get_path("include"), "Python.h")  # Python's C headers
    return bool(
        (shutil.which("gcc") or shutil.which("clang")) and headers.exists() and importlib.util.find_spec("triton")
    )


def peak_mb(step, device, warmup=3):
    """Return the peak MB that one `step(phase)` allocates with torch on `device`, above what was held before.

    Weights and optimizer state do not count, nor does a CUDA graph's memory: all were allocated before, since the step
    runs `warmup` times first. A compiled step compiles in the first and records its graph in the next.
    """
    for _ in range(warmup):
        step(contextlib.nullcontext)
    return max(0.0, *memory.curve(step, device)[1])


def layers_on_roofline(net, inputs, variants):
    """Return {"layer, variant": (FLOP per byte, GFLOP/s)} of each layer in each variant.

    `inputs` is {layer's name: its input}, `variants` is {variant: (dtype, memory layout)}.
    """
    points = {}
    for variant, (dtype, layout) in variants.items():
        for name, x in inputs.items():
            there = {"dtype": dtype, "memory_format": layout}
            layer = copy.deepcopy(getattr(net, name)).to(**there)
            points[f"{name}, {variant}"] = intensity.place(layer, x.to(**there))
    return points
