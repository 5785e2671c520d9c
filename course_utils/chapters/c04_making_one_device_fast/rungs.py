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


def with_threads(step, num_threads):
    """Return `step` such that torch computes with `num_threads` threads in it, at least one."""

    def limited(*arguments):
        usual = torch.get_num_threads()
        torch.set_num_threads(max(1, num_threads))
        try:
            return step(*arguments)
        finally:
            torch.set_num_threads(usual)

    return limited


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


def table(timings, rungs, peak, equal):
    """Return a line for each of `rungs`: rate, gain over the rung that it changes and over the first, MB, verdict.

    `equal` are the quartiles of the ratio of two equal steps; they are in the last line.
    """
    lines = ["rung                    images/s (middle half)   × the rung it changes   × rung 0     MB"]
    for rung in rungs:
        timing = timings[rung]
        rate, (low, high) = timing.samples_per_s, timing.samples_per_s_half
        cells = f"{rung:21s} {rate:9,.0f} {f'({low:,.0f}–{high:,.0f})':15s}"
        mb = f"{peak[rung]:.0f}" if rung in peak else "–"
        if rung == rungs[0]:
            lines.append(f"{cells} {'':25s} {1:7.2f} {mb:>6s}")
            continue
        below = built_on(rungs)[rung]
        gain, whole = throughput.ratio(timings[below], timing), throughput.ratio(timings[rungs[0]], timing)
        times = f"rung {below[0]} × {span(gain)}"
        lines.append(f"{cells} {times:25s} {whole[1]:7.2f} {mb:>6s}  {verdict(gain, equal)}")
    return "\n".join([*lines, f"two equal steps (rung 5 again) × {span(equal)}"])


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
