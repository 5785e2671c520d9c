"""The hardware of a job: GPUs, nodes, links, and the reachable shares of their peaks."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .collective_costs import NCCL_NVLINK, Way
from .sizes import require


@dataclass(frozen=True)
class Efficiency:
    """The reachable shares of a GPU's peaks, the same for every job; each is from one published row (`published`).

    `matrix` is the share of the matrix peak in a large product that fills all multiprocessors, `attention` that of
    FlashAttention 2, `native_attention` that of a kernel for this GPU's generation if that is another, `eight` that of
    products in fp8, casts included. `memory` is the share of the bandwidth: 265 of 320 GB/s, NVIDIA's vector add on a
    T4.
    """

    matrix: float
    attention: float
    memory: float = 265 / 320
    eight: float = 0.0
    native_attention: float = 0.0


UP_TO_A100 = Efficiency(0.71, 0.335)
# Blackwell has the same: nothing was fitted to its rows.
HOPPER = Efficiency(0.62, 0.175, eight=0.47, native_attention=0.35)


PYTHON = 52e-6  # seconds for an operation


@dataclass(frozen=True)
class GPU:
    """One kind of GPU: memory in bytes, bandwidth in bytes/s, and the dense matrix peak in FLOP/s per precision.

    Its `multiprocessors` decide how well the tiles of a matrix product fill it; 1 is for a device whose products are
    not cut into tiles.
    """

    name: str
    memory: float
    bandwidth: float
    peaks: dict[str, float]
    efficiency: Efficiency = UP_TO_A100
    multiprocessors: int = 1

    def __post_init__(self):
        for name in ("memory", "bandwidth"):
            require(name, getattr(self, name), float)
        require("multiprocessors", self.multiprocessors, int)

    def peak(self, precision: str) -> float:
        if precision not in self.peaks:
            raise ValueError(f"precision is {precision!r}, and for {self.name} the table has {', '.join(self.peaks)}")
        return self.peaks[precision]


def _gpu(name, multiprocessors, gigabytes, bandwidth, fp32, sixteen=None, tf32=None, eight=None):
    peaks = {"fp32": fp32, "tf32": tf32, "fp16": sixteen, "bf16": sixteen if tf32 else None, "fp8": eight}
    efficiency = HOPPER if eight else UP_TO_A100
    peaks = {precision: 1e12 * peak for precision, peak in peaks.items() if peak}
    return GPU(name, gigabytes * 1e9, bandwidth * 1e9, peaks, efficiency, multiprocessors)


# From the vendor's data sheets: multiprocessors (of GB200 and GB300 as CUDA counts them), memory in GB, bandwidth in
# GB/s, dense TFLOPS.
# Of memory, a data sheet's GB is about 2**30 bytes. It is counted as 10**9 here, so that up to 7 % less is planned with
# than a driver reports.
GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("V100-16", 80, 16, 900, 15.7, 125),
        _gpu("V100-32", 80, 32, 900, 15.7, 125),
        _gpu("T4", 40, 16, 320, 8.1, 65),
        _gpu("A100-40", 108, 40, 1555, 19.5, 312, 156),
        _gpu("A100-80", 108, 80, 2039, 19.5, 312, 156),
        _gpu("H100", 132, 80, 3350, 67, 989, 494.5, 1979),
        _gpu("H200", 132, 141, 4800, 67, 989, 494.5, 1979),
        _gpu("B200", 148, 180, 8000, 75, 2250, 1125, 4500),
        _gpu("GB200", 152, 186, 8000, 80, 2500, 1250, 5000),
        _gpu("GB300", 152, 279, 8000, 80, 2500, 1250, 5000),
    )
}


@dataclass(frozen=True)
class Cluster:
    """Nodes with `gpus_per_node` of `gpu` each; bandwidths in bytes/s.

    `inside` is the bus bandwidth of a collective within a node; `between` what one node sends to others over all its
    network cards; `ways` the library's algorithms for a collective. `dollars_per_hour` is the price of one GPU. `nodes`
    is their number, or None for as many as a method needs. `call` is the seconds that Python takes for one operation,
    while the device works on the one before; 0 for a device that works only while Python waits, as a CPU does.
    """

    gpu: GPU
    gpus_per_node: int = 8
    inside: float = 235e9
    between: float = 200e9
    ways: tuple[Way, ...] = NCCL_NVLINK
    dollars_per_hour: float = 0.0
    nodes: int | None = None
    call: float = PYTHON

    if TYPE_CHECKING:  # the name of a GPU in the table works too

        def __init__(
            self, gpu: GPU | str, gpus_per_node: int = ..., inside: float = ..., between: float = ...,
            ways: tuple[Way, ...] = ..., dollars_per_hour: float = ..., nodes: int | None = ...,
            call: float = ...,
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
