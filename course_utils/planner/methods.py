"""How a job is split over ranks, and how it trains."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .clusters import Cluster
from .networks import Layer, Network
from .sizes import require

SHARDS = ("none", "optimizer", "gradients", "full")  # ZeRO stages 0 to 3; "full" is FSDP
CHECKPOINTING = ("none", "selective", "operations", "full")
SCHEDULES = ("gpipe", "1f1b", "interleaved")
NOT_MODELLED = "not modelled are offloading to the CPU or a disk, LoRA and other frozen weights, quantized training"


def schedule_of(chunks: int) -> str:
    """The schedule of stages with `chunks` chunks each: only interleaved ones have several."""
    return "interleaved" if chunks > 1 else "1f1b"


@dataclass(frozen=True)
class State:
    """Bytes per parameter: of its weight, its gradient, its optimizer state, and (`sent`) in a message."""

    weights: float
    gradients: float
    optimizer: float
    sent: float


# Keyed by (is mixed precision, optimizer). Mixed precision counts an fp32 copy as optimizer state, as ZeRO does (K =
# 12).
STATES = {
    (False, "sgd"): State(4, 4, 0, 4),
    (False, "momentum"): State(4, 4, 4, 4),
    (False, "adam"): State(4, 4, 8, 4),
    (True, "sgd"): State(2, 2, 4, 2),
    (True, "momentum"): State(2, 2, 8, 2),
    (True, "adam"): State(2, 2, 12, 2),
}


@dataclass(frozen=True)
class Method:
    """A split over `data` × `context` × `tensor` × `pipeline` ranks, numbered tensor first, pipeline last.

    The `context` ranks share each sequence, by ring attention. Of `expert` neighbouring ranks of a stage, each has a
    part of a block's experts, and works on the tokens that all of these ranks send them. `shard` is divided over the
    data-parallel ranks or, with `replicas` (HSDP), over those of one replica. `overlap` hides data-parallel
    communication behind compute, `tensor_overlap` tensor-parallel communication; with `buckets`, gradients are copied
    to be sent, as DDP does by default. A stage's messages are divided over its tensor-parallel ranks with
    `divided_messages`, else each rank sends them whole; with `pipeline_overlap` they hide behind computing.
    `native_attention` takes a kernel of the GPU's own generation, such as cuDNN's or FlashAttention 3 on the H100,
    instead of FlashAttention 2. Full recomputation `stops_early`, before a block's last product, as
    torch.utils.checkpoint does. `state` overrides the bytes per parameter. Not modelled: offloading to CPU or disk,
    LoRA and other frozen weights, and quantized training.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    shard: str = "none"
    replicas: int = 1
    sequence_parallel: bool = False
    checkpointing: str = "none"
    micro_batch: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    precision: str = "bf16"
    optimizer: str = "adam"
    overlap: bool = True
    buckets: bool = True
    tensor_overlap: bool = False
    pipeline_overlap: bool = False
    native_attention: bool = False
    divided_messages: bool = True
    stops_early: bool = True
    context: int = 1
    expert: int = 1
    state: State | None = None

    def __new__(cls, *args, **named):
        unknown = [name for name in named if name not in cls.__dataclass_fields__]
        if unknown:
            raise TypeError(
                f"Method has no {', '.join(unknown)}: it has {', '.join(cls.__dataclass_fields__)}, and {NOT_MODELLED}"
            )
        return super().__new__(cls)

    def __post_init__(self):
        for name in ("data", "tensor", "pipeline", "context", "expert", "replicas", "micro_batch", "chunks"):
            require(name, getattr(self, name), int)
        for name, known in (("shard", SHARDS), ("checkpointing", CHECKPOINTING), ("schedule", SCHEDULES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it can be {', '.join(known)}; {NOT_MODELLED}")
        if self.copies % self.replicas:
            raise ValueError(f"replicas is {self.replicas}, which does not divide data × context, {self.copies}")
        if self.copies * self.tensor % self.expert:
            raise ValueError(
                f"expert is {self.expert}, which does not divide the {self.copies * self.tensor} ranks of a stage"
            )
        if (self.chunks > 1) != (self.schedule == "interleaved"):
            raise ValueError(
                f"chunks is {self.chunks} with schedule {self.schedule!r}: only interleaved stages have several"
            )
        if self.state is None:
            is_mixed = self.precision in ("fp16", "bf16", "fp8")
            if (is_mixed, self.optimizer) not in STATES:
                raise ValueError(
                    f"optimizer is {self.optimizer!r}; it can be sgd, momentum or adam, or give state=State(…); "
                    f"{NOT_MODELLED}"
                )
            object.__setattr__(self, "state", STATES[is_mixed, self.optimizer])

    def settings(self) -> dict[str, object]:
        """All fields but `state`, by name, for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "state"}

    @property
    def samples(self) -> float:
        """The sequences of a micro-batch that a rank works on; with `context` it has a part of each."""
        return self.micro_batch / self.context

    @property
    def copies(self) -> int:
        """The number of ranks that have the same parameters: data-parallel ones, and those that share a sequence."""
        return self.data * self.context

    @property
    def world_size(self) -> int:
        return self.copies * self.tensor * self.pipeline

    @property
    def shards(self) -> int:
        """The number of ranks over which `shard` is divided."""
        return 1 if self.shard == "none" else self.copies // self.replicas

    def divides(self, what: str) -> bool:
        """Whether `what` ("optimizer", "gradients" or "full") is divided."""
        return SHARDS.index(self.shard) >= SHARDS.index(what)

    def shards_of(self, what: str) -> int:
        """The number of ranks over which `what` is divided."""
        return self.shards if self.divides(what) else 1

    @property
    def expert_copies(self) -> int:
        """The number of ranks that have the same experts."""
        return self.copies * self.tensor // self.expert

    @property
    def expert_shards(self) -> int:
        """The number of ranks over which `shard` is divided for experts."""
        return 1 if self.shard == "none" else max(1, self.shards * self.tensor // self.expert)


def require_room(network: Network, cluster: Cluster, method: Method) -> None:
    """Raise ValueError, naming the argument, if the model cannot be split like this or the ranks do not fit."""
    t, p, num_gpus, per_node = method.tensor, method.pipeline, method.world_size, cluster.gpus_per_node
    for what, number in (("heads", network.heads), *network.widths):
        if number and number % t:
            raise ValueError(f"tensor is {t}, which does not divide the model's {number} {what}")
    if method.context > 1 and (not network.heads or network.tokens % method.context):
        known = f"{network.tokens} tokens" if network.heads else "network, which was counted from a module"
        raise ValueError(f"context is {method.context}, which does not divide the model's {known}")
    if method.expert > 1 and (not network.experts or network.experts % method.expert):
        raise ValueError(f"expert is {method.expert}, which does not divide the model's {network.experts} experts")
    if network.experts and t > 1 and not method.sequence_parallel:
        raise ValueError("tensor parallelism divides the tokens of experts: it needs sequence_parallel=True")
    if method.sequence_parallel and network.tokens > 1 and network.tokens // method.context % t:
        raise ValueError(f"tensor is {t}, which does not divide the {network.tokens} tokens for sequence_parallel")
    if num_gpus > per_node and per_node % t and t % per_node:
        raise ValueError(
            f"tensor is {t}, and a node has {per_node} GPUs: over several nodes it is a divisor or a multiple of that"
        )
    kinds, numbers = "data × tensor × pipeline", f"{method.data} × {t} × {p}"
    if method.context > 1:
        kinds, numbers = f"{kinds} × context", f"{numbers} × {method.context}"
    asked = f"{kinds}, {numbers}, are {num_gpus} GPUs"
    if cluster.nodes is not None and num_gpus > cluster.nodes * per_node:
        raise ValueError(f"{asked}, and the cluster has {cluster.nodes} × {per_node}")
    if num_gpus > per_node and num_gpus % per_node:
        raise ValueError(f"{asked}, which is more than a node's {per_node} and fills no whole number of nodes")
    num_blocks = sum(layer.is_block for layer in network.layers)
    if p * method.chunks > num_blocks >= p:
        raise ValueError(
            f"chunks is {method.chunks} of each of {p} stages, and the model has {num_blocks} blocks: a chunk needs at "
            "least one"
        )


def dense_parameters(layers: Iterable[Layer], method: Method) -> float:
    """The number of the layers' parameters outside experts on one rank, before sharding."""
    return sum(layer.parameters for layer in layers) / method.tensor


def expert_parameters(layers: Iterable[Layer], method: Method) -> float:
    """The number of the parameters of the layers' experts on one rank, before sharding."""
    return sum(layer.expert_parameters for layer in layers) / method.expert


def parameters_of(layers: Sequence[Layer], method: Method) -> float:
    """The number of the layers' parameters on one rank, before sharding."""
    return dense_parameters(layers, method) + expert_parameters(layers, method)


def held_parameters(layers: Sequence[Layer], method: Method, what: str) -> float:
    """The number of the layers' parameters whose `what` ("optimizer", "gradients" or "full") a rank holds."""
    if not method.divides(what):
        return parameters_of(layers, method)
    dense, of_experts = dense_parameters(layers, method), expert_parameters(layers, method)
    return dense / method.shards + of_experts / method.expert_shards


def stages(network: Network, num_stages: int) -> list[tuple[Layer, ...]]:
    """The layers of each stage: equal numbers of blocks (earlier stages get one more), others beside their neighbours.

    Raises ValueError if there are fewer blocks than stages.
    """
    blocks = [i for i, layer in enumerate(network.layers) if layer.is_block]
    if num_stages > len(blocks):
        raise ValueError(
            f"pipeline is {num_stages}, and the model has {len(blocks)} blocks: a stage needs at least one"
        )
    each, more = divmod(len(blocks), num_stages)
    begins = [0, *(blocks[i * each + min(i, more)] for i in range(1, num_stages)), len(network.layers)]
    return [network.layers[begin:end] for begin, end in zip(begins, begins[1:])]
