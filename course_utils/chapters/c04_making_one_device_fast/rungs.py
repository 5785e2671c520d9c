"""Versions of one training step: which of them a machine can run, their speed and memory, and tables of both."""

import contextlib
import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

import torch

from ...measure import memory, throughput


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
        return {} if _has_compiler("gcc", "clang") and _has_triton() else {"7 torch.compile": _GPU_NEEDS}
    reasons = {"2 pinned, prefetch": "no GPU to copy to", "7 torch.compile": "left out on a CPU: it compiles for long"}
    return reasons if fast_dtype(device) else {**reasons, "4 mixed precision": "this CPU has no 16-bit instructions"}


_GPU_NEEDS = "it needs Triton, gcc and Python.h"


def no_inductor(device):
    """Return why torch.compile's usual backend cannot compile a small function for `device`, or ""."""
    if torch.device(device).type == "cuda":
        return not_here(device).get("7 torch.compile", "")
    return "" if _has_compiler("g++", "clang++") else "it needs a C++ compiler and Python.h"


def _has_compiler(*names):
    """Return whether one of these compilers is there, and Python.h, which many systems have in a package of its own."""
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return any(map(shutil.which, names)) and headers.exists()


def _has_triton():
    return importlib.util.find_spec("triton") is not None


def peak_mb(step, device, warmup=3):
    """Return the peak MB that one `step(phase)` allocates with torch on `device`, above what was held before.

    Weights and optimizer state do not count, nor does a CUDA graph's memory: all were allocated before, since the step
    runs `warmup` times first. A compiled step compiles in the first and records its graph in the next.
    """
    for _ in range(warmup):
        step(contextlib.nullcontext)
    with _without_stderr():  # torch says there, at times, that a step frees memory of the step before: it does
        megabytes = memory.curve(step, device)[1]
    return max(0.0, *megabytes)


@contextlib.contextmanager
def _without_stderr():
    """What C++ code writes to the file descriptor is lost inside the block; exceptions are not."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def with_tf32(step, allowed):
    """Return `step` such that a GPU may, or may not, read float32 as TF32 in its products and convolutions."""

    def switched(*arguments):
        switches = torch.backends.cudnn.conv, torch.backends.cuda.matmul
        before = [switch.fp32_precision for switch in switches]
        try:
            for switch in switches:
                switch.fp32_precision = "tf32" if allowed else "ieee"
            return step(*arguments)
        finally:  # an error must not leave the switches changed
            for switch, value in zip(switches, before):
                switch.fp32_precision = value

    return switched


def built_on(rungs):
    """Return {rung: the rung that it changes}, from the second rung on: rung 3 replaces 1 and 2, others keep all."""
    found = dict(zip(rungs[1:], rungs))
    return found | {rung: rungs[0] for rung in rungs if rung.startswith("3")}


def verdict(gain, equal):
    """Return "faster", "slower" or "not shown" for the quartiles of a gain, given those of two equal steps' ratio."""
    if gain[0] > max(1, equal[2]):
        return "faster"
    return "slower" if gain[2] < min(1, equal[0]) else "not shown"


def table(timings, rungs, peak, equal, bounds):
    """Return a line for each of `rungs`: ms, gain over the rung that it changes and its bound, gain over the first, MB.

    A verdict ends the line. `equal` are the quartiles of the ratio of two equal steps; they are in the last line.
    """
    head = f"{'rung':21s} {'ms a step (middle half)':23s} {'× the rung it changes':25s}"
    lines = [f"{head} {'at most':>8s} {'× rung 0':>8s} {'MB':>5s}"]
    for rung in rungs:
        timing = timings[rung]
        cells = f"{rung:21s} {1e3 * timing.median_s:6.{_digits(timing)}f} {_half_ms(timing):16s}"
        mb = f"{peak[rung]:.0f}" if rung in peak else "–"
        if rung == rungs[0]:
            lines.append(f"{cells} {'':34s} {1:8.2f} {mb:>5s}")
            continue
        below = built_on(rungs)[rung]
        gain, whole = throughput.ratio(timings[below], timing), throughput.ratio(timings[rungs[0]], timing)
        times = f"rung {below[0]} × {span(gain)}"
        lines.append(f"{cells} {times:25s} {bounds[rung]:8.2f} {whole[1]:8.2f} {mb:>5s}  {verdict(gain, equal)}")
    return "\n".join([*lines, f"two equal steps (rung 5 again) × {span(equal)}"])


def _digits(timing):
    return 1 if timing.median_s >= 0.01 else 2


def _half_ms(timing):
    return "({}–{})".format(*(f"{1e3 * s:.{_digits(timing)}f}" for s in timing.middle_half_s))


def span(quartiles):
    """Return "1.45 (1.42–1.48)" for (1.42, 1.45, 1.48)."""
    low, middle, high = quartiles
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def gpu_table(values, batch_size):
    """Return a line for each rung in a record of the ladder: rate, × rung 0, and how long the GPU worked in a step.

    Where no kernels were recorded, as for rungs that load, the last columns are empty.
    """
    rates = {rung: rate for rung, (rate, *_) in values["images_per_s"].items()}
    rates |= {"no loading": values["no_loading"]} if "no_loading" in values else {}
    first = next(iter(rates.values()))
    lines = ["rung                   images/s  × rung 0   a step   GPU busy   kernels"]
    for rung, rate in rates.items():
        step_ms, busy_ms = 1e3 * batch_size / rate, values.get("busy_ms", {}).get(rung)
        line = f"{rung:21s} {rate:9,.0f} {rate / first:9.2f}  {step_ms:5.2f} ms"
        if busy_ms is not None:
            line += f"  {busy_ms:.2f} ms {busy_ms / step_ms:4.0%}  {values['kernels'][rung]:4.0f}"
        lines.append(line)
    return "\n".join(lines)
