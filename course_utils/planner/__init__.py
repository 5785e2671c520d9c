"""Predicts memory, step time and cost of a training job by arithmetic; every term is a named line.

    model    transformer(…), or counted from a module ──┐
    cluster  Cluster("A100-80", gpus_per_node=8, …) ────┼── plan() ──> Plan: memory and step, each a tree of Lines
    method   Method(data=8, tensor=8, pipeline=12, …) ──┘                    printed, they show formula and source

`print(plan.memory)` and `print(plan.step)` show where a surprising total comes from.
"""

from dataclasses import asdict, dataclass, replace

from .clusters import GPU, GPUS, Cluster, Efficiency
from .collective_costs import NCCL_NVLINK, NCCL_PCIE, Group, Way, all_reduce, half
from .footprint import memory, peak
from .lines import Line
from .methods import Method, State, require_room, stages
from .networks import Layer, Network, Work, transformer
from .step_time import step

__all__ = [
    "GPU", "GPUS", "NCCL_NVLINK", "NCCL_PCIE", "Cluster", "Efficiency", "Group", "Layer", "Line", "Method", "Network",
    "Plan", "State", "Way", "Work", "all_reduce", "calibrated", "half", "plan", "transformer",
]  # fmt: skip


FREE = 0.1  # of a GPU's memory, beside a plan's peak
ALLOCATOR = 0.06  # of a plan's peak; fitted to torchtitan's compiled Llama 3 8B on 128 GPUs


@dataclass(frozen=True)
class Plan:
    """Costs of the fullest rank: `memory` (each category at its maximum) and `peak` in bytes, `step` in seconds."""

    network: Network
    cluster: Cluster
    method: Method
    batch: int
    memory: Line
    peak: Line
    step: Line

    @property
    def reserved(self) -> float:
        """Bytes that PyTorch's allocator has reserved at the peak, with what it keeps in pieces too small to use."""
        return (1 + ALLOCATOR) * self.peak.value

    @property
    def fits(self) -> bool:
        """Whether a tenth of the memory stays free, for the allocator, CUDA and NCCL."""
        return self.peak.value <= (1 - FREE) * self.cluster.gpu.memory

    @property
    def samples_per_s(self) -> float:
        return self.batch / self.step.value

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of one GPU."""
        return self.samples_per_s * self.network.tokens / self.method.world_size

    @property
    def flops_per_s(self) -> float:
        """FLOP/s of one GPU; full recomputation counts, as in Narayanan and others (2021)."""
        passes = 4 if self.method.checkpointing == "full" else 3
        each = sum((passes if layer.is_block else 3) * layer.on_rank("flops") for layer in self.network.layers)
        return self.batch * each / self.step.value / self.method.world_size

    @property
    def mfu(self) -> float:
        """Model-FLOP utilization: the FLOP of three forward passes, without recomputation, over the peak."""
        peak = self.cluster.gpu.peak(self.method.precision)
        return 3 * self.network.flops * self.samples_per_s / self.method.world_size / peak

    def gpu_hours(self, samples: float) -> float:
        """The hours of all GPUs together for training on `samples`."""
        return samples / self.samples_per_s / 3600 * self.method.world_size

    def dollars(self, samples: float) -> float:
        """The price in dollars of training on `samples`, at the cluster's price per GPU and hour."""
        return self.gpu_hours(samples) * self.cluster.dollars_per_hour

    def __str__(self):
        return f"{self.memory}\n{self.peak}\n{self.step}"


def plan(network: Network, cluster: Cluster, method: Method, batch: int) -> Plan:
    """Predict what one step on `batch` samples, over all ranks, holds and takes.

    Raises ValueError, naming the argument, if batch, stages or heads do not divide, or if the ranks do not fit on the
    cluster.
    """
    per_round = method.data * method.micro_batch
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1 or batch % per_round:
        raise ValueError(
            f"batch is {batch!r}, which data × micro_batch, {method.data} × {method.micro_batch}, does not divide"
        )
    num_micro_batches = batch // per_round
    require_room(network, cluster, method)
    cut = stages(network, method.pipeline)
    held, fullest = (each(cut, method, num_micro_batches) for each in (memory, peak))
    return Plan(network, cluster, method, batch, held, fullest, step(cut, cluster, method, num_micro_batches))


def calibrated(cluster: Cluster, network: Network, method: Method, batch: int, seconds: float) -> Cluster:
    """`cluster` with all efficiencies scaled alike, so that this step on one GPU takes `seconds`.

    Raises ValueError for a method with several ranks, since communication would count as compute.
    """
    if method.world_size > 1:
        raise ValueError(f"method has {method.world_size} ranks: calibrate with a step of one")
    faster = plan(network, cluster, method, batch).step.value / seconds
    shares = {name: share * faster for name, share in asdict(cluster.gpu.efficiency).items()}
    efficiency = Efficiency(**shares)
    return replace(cluster, gpu=replace(cluster.gpu, efficiency=efficiency))
