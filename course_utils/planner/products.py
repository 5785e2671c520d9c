"""The seconds of matrix products: tiles in waves over a GPU's multiprocessors, or bytes where those take longer."""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from .clusters import GPU

# Rows and columns of the tiles that a kernel computes at once, and their speed relative to the largest: a smaller tile
# reads more bytes for each product, but leaves fewer multiprocessors idle in the last wave.
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.85))
# How many times as long a product of 16-bit numbers takes if a size is no multiple of 8: matrix units cannot be used.
MISALIGNED = 16.0


@dataclass(frozen=True)
class Product:
    """A matrix product for one sample, (rows × depth) times (depth × columns).

    With `count`, each sample has that many products of its own, as attention has one for each head. Else the second
    factor is a weight, and the samples of a micro-batch are rows of one product. `split` is what tensor parallelism
    divides: "columns", "depth", "count" or "rows". With `experts`, there are that many weights, and each takes an equal
    part of the rows, which tensor parallelism divides.
    """

    rows: int
    columns: int
    depth: int
    split: str
    count: int = 0
    experts: int = 0

    def seconds(
        self, samples: float, tensor: int, gpu: GPU, precision: str, expert: int = 1
    ) -> tuple[float, float]:  # fmt: skip
        """The seconds of the forward pass and of the backward pass on one of `tensor` ranks.

        Each of `expert` ranks has a part of the experts, and the rows that all of these ranks send there.
        """
        m, n, k, count = self.rows, self.columns, self.depth, float(self.count * samples)
        if not self.count:
            m, count = int(m * samples), 1.0
        if self.experts:  # their rows are padded
            count = self.experts / expert
            m = 8 * ceil(m / tensor / count / 8)
        elif self.split == "columns":
            n //= tensor
        elif self.split == "depth":
            k //= tensor
        else:
            count = count / tensor
        shares = gpu.efficiency
        share = shares.eight if precision == "fp8" else shares.matrix
        element_bytes = {"fp32": 4, "tf32": 4, "fp8": 1}.get(precision, 2)
        speeds = gpu.multiprocessors, gpu.peak(precision) * share, gpu.bandwidth * shares.memory
        forward = _seconds(m, n, k, count, element_bytes, *speeds)
        of_input, of_weight = (_seconds(*sizes, count, element_bytes, *speeds) for sizes in ((m, k, n), (k, n, m)))
        return forward, of_input + of_weight


@lru_cache(maxsize=2**14)
def _seconds(rows, columns, depth, count, element_bytes, multiprocessors, flops_per_s, bytes_per_s):
    if multiprocessors == 1:
        computing = 2.0 * count * rows * columns * depth / flops_per_s
    else:
        computing = min(
            ceil(count * ceil(rows / a) * ceil(columns / b) / multiprocessors) * a * b / speed for a, b, speed in TILES
        )
        computing *= 2.0 * depth * multiprocessors / flops_per_s
    if element_bytes <= 2 and multiprocessors > 1 and (rows % 8 or columns % 8 or depth % 8):
        computing *= MISALIGNED
    moved = count * element_bytes * (rows * depth + depth * columns + rows * columns)
    return max(computing, moved / bytes_per_s)
