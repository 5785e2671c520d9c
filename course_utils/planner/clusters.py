"""What a job runs on: GPUs, the nodes that hold them, the links in and between nodes, and how much
of their peaks is reached.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .collective_costs import NCCL_NVLINK, Way
from .sizes import require


@dataclass(frozen=True)
class Efficiency:
    """The share of a peak that is reached: of matrix products, and of memory bandwidth by everything else.

    They are inputs, each taken from one published measurement or from one of your own, and the same for every job.
    `memory` is 265 of 320 GB/s, NVIDIA's vector add on a T4.
    """

    matrix: float
    memory: float = 265 / 320


# What makes one layer of 22 B parameters take 7.7 ms forward on 8 A100 (Korthikanti and others, 2022).
UP_TO_A100 = Efficiency(0.671)
# What makes a model of 1 B parameters train at 45,455 tokens/s on each of 8 H100 (llm-foundry).
HOPPER = Efficiency(0.456)


@dataclass(frozen=True)
class GPU:
    """Memory in bytes, memory bandwidth in bytes/s, and the dense peak in FLOP/s of each
    precision's matrix products.
    """

    name: str
    memory: float
    bandwidth: float
    peaks: dict[str, float]
    efficiency: Efficiency = UP_TO_A100

    def __post_init__(self):
        for name in ("memory", "bandwidth"):
            require(name, getattr(self, name), float)

    def peak(self, precision: str) -> float:
        if precision not in self.peaks:
            raise ValueError(f"precision is {precision!r}, and for {self.name} the table has {', '.join(self.peaks)}")
        return self.peaks[precision]


def _gpu(name, gigabytes, bandwidth, fp32, sixteen=None, tf32=None):
    peaks = {"fp32": fp32, "tf32": tf32, "fp16": sixteen, "bf16": sixteen if tf32 else None}
    efficiency = HOPPER if name.startswith("H") else UP_TO_A100
    return GPU(
        name, gigabytes * 1e9, bandwidth * 1e9, {name: 1e12 * peak for name, peak in peaks.items() if peak}, efficiency
    )


# The vendor's data sheets: memory GB, its bandwidth GB/s, dense TFLOPS.
GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("V100-16", 16, 900, 15.7, 125),
        _gpu("V100-32", 32, 900, 15.7, 125),
        _gpu("T4", 16, 320, 8.1, 65),
        _gpu("A100-40", 40, 1555, 19.5, 312, 156),
        _gpu("A100-80", 80, 2039, 19.5, 312, 156),
        _gpu("H100", 80, 3350, 67, 989, 494.5),
        _gpu("H200", 141, 4800, 67, 989, 494.5),
    )
}


@dataclass(frozen=True)
class Cluster:
    """`gpus_per_node` of `gpu` in each node; bandwidths in bytes/s.

    `inside` is the bus bandwidth that a collective of a node's GPUs reaches; `between` what one node sends to others,
    over all of its network cards; `ways`, what the library can do for a collective. `dollars_per_hour` is the price of
    one GPU. `nodes` is how many there are, or None for as many as a method asks for.
    """

    gpu: GPU
    gpus_per_node: int = 8
    inside: float = 235e9
    between: float = 200e9
    ways: tuple[Way, ...] = NCCL_NVLINK
    dollars_per_hour: float = 0.0
    nodes: int | None = None

    if TYPE_CHECKING:  # the name of a GPU in the table will do, too

        def __init__(
            self, gpu: GPU | str, gpus_per_node: int = ..., inside: float = ..., between: float = ...,
            ways: tuple[Way, ...] = ..., dollars_per_hour: float = ..., nodes: int | None = ...,
        ) -> None: ...  # fmt: skip

    def __post_init__(self):
        if isinstance(self.gpu, str):
            if self.gpu not in GPUS:
                raise ValueError(
                    f"gpu is {self.gpu!r}, which the table does not know: it has {', '.join(GPUS)}, or give a GPU(…)"
                )
            object.__setattr__(self, "gpu", GPUS[self.gpu])
        require("gpus_per_node", self.gpus_per_node, int)
        if self.nodes is not None:
            require("nodes", self.nodes, int)
        for name in ("inside", "between"):
            require(name, getattr(self, name), float)
