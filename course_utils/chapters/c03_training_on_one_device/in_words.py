"""Sentences about this machine's numbers and about recorded ones, which may lack what was not kept when they were."""


def peak(values):
    """Say `values["max_memory_allocated"]`, and how much of it is "workspaces", both in bytes, if that was kept."""
    said = f"{values['max_memory_allocated'] / 1e6:.6f} MB at its peak"
    workspaces = values.get("workspaces")
    return said if workspaces is None else f"{said}, of which {workspaces / 1e6:.6f} MB are workspaces of cuBLAS"


def steps(rates):
    """Say the ms per step of {batch size: images/s}, and what batch 64 takes over batch 2."""
    each = ", ".join(f"{1e3 * n / rate:.2f} at {n}" for n, rate in rates.items())
    ratio = 32 * rates[2] / rates[64]
    so = ": t1 from these two says little" if ratio < 1.25 else ""
    return f"ms per step: {each}\n    batch 64 takes {ratio:.2f} times as long as batch 2{so}"


def widths(ms):
    """Say the ms per step of {channels: ms}, from the narrowest to the widest network, and whether they differ."""
    each = ", ".join(f"{value:.2f}" for value in ms.values())
    slowest, quickest = max(ms.values()), min(ms.values())
    if slowest <= 1.25 * quickest:
        so = "the same within a quarter: nearly all of it is t0"
    else:
        so = f"the slowest {slowest / quickest:.1f} times the quickest"
    return f"{', '.join(ms)} channels: {each} ms a step, {so}"


def work(values):
    """Say how long a GPU works in a step, of {"work": {batch size: ms}, "step": {batch size: ms}}."""
    steps = values["step"]
    each = (f"{ms:.3g} ms of a step of {steps[size]:.3g} ms at batch {size}" for size, ms in values["work"].items())
    return f"the GPU works {' and '.join(each)}"
