"""Where a layer lies under a device's roofline: FLOP per byte, FLOP per second, and the roof itself."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from . import memory, throughput


def place(layer: torch.nn.Module, x: torch.Tensor) -> tuple[float, float]:
    """Return (FLOP per byte, GFLOP/s) of `layer(x)`.

    The bytes are those of `x`, the layer's weights and its result, each moved once. A layer without products, such as
    ReLU, counts one operation for each element of the result.
    """
    with torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            y = layer(x)
        flops = counter.get_total_flops() or y.numel()
        moved = x.nbytes + y.nbytes + memory.weight_bytes(layer)
        timing = throughput.measure(lambda: layer(x), flops / 1e9, repeats=5, block_s=0.02)
    return flops / moved, timing.samples_per_s


def roof(device: torch.device | str, dtype: torch.dtype = torch.float32) -> tuple[float, float]:
    """Return the (GB/s, GFLOP/s) that `device` reaches, from a 64 MiB copy (read and written) and a product in `dtype`.

    A roof is what the device can do, so the fastest of ten repeats counts here, not the median.
    """
    side = 1024 if torch.device(device).type == "cpu" else 8192
    matrix, source = torch.randn(side, side, device=device, dtype=dtype), torch.zeros(2**24, device=device)
    target = torch.empty_like(source)
    copies = throughput.measure(lambda: target.copy_(source), 2 * source.nbytes / 1e9, repeats=10, block_s=0.05)
    products = throughput.measure(lambda: matrix @ matrix, 2 * side**3 / 1e9, repeats=10, block_s=0.05)
    return copies.num_samples / min(copies.seconds), products.num_samples / min(products.seconds)
