"""Where a layer lies under a device's roofline: FLOP per byte, FLOP per second, and the roof itself."""

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from . import memory, throughput


@dataclass(frozen=True)
class Call:
    """One call of a layer: its operations, the bytes it moves, and its seconds."""

    num_flops: int
    num_bytes: int
    seconds: float

    @property
    def point(self) -> tuple[float, float]:
        """(FLOP per byte, GFLOP/s), the call's place in a roofline."""
        return self.num_flops / self.num_bytes, self.num_flops / self.seconds / 1e9


def time_call(layer: torch.nn.Module, x: torch.Tensor, num_in_graph: int = 0) -> Call:
    """Count and time `layer(x)`, without gradients; the time is the median of five blocks.

    The bytes are those of `x`, the layer's weights and its result, each moved once. A layer without products, such as
    ReLU, counts one operation for each element of the result. With `num_in_graph`, which needs a GPU, so many calls are
    recorded as one CUDA graph: Python asks for all of them at once, and the time is that of one.
    """
    with torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            y = layer(x)
        step = throughput.graph_of(lambda: layer(x), num_in_graph) if num_in_graph else lambda: layer(x)
        timing = throughput.measure(step, repeats=5, block_s=0.02)
    num_bytes = x.nbytes + y.nbytes + memory.weight_bytes(layer)
    return Call(counter.get_total_flops() or y.numel(), num_bytes, timing.median_s / (num_in_graph or 1))


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
