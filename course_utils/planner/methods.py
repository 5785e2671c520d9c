"""How a job is split over ranks, and how it trains."""

from dataclasses import dataclass

from .sizes import require

SHARDS = ("none", "optimizer", "gradients", "full")  # ZeRO's stages 0 to 3; the last is FSDP's
CHECKPOINTING = ("none", "selective", "full")
SCHEDULES = ("gpipe", "1f1b", "interleaved")


@dataclass(frozen=True)
class State:
    """Bytes that a parameter takes: its weight, its gradient, the optimizer's;
    `sent`, of its weight or gradient in a message.
    """

    weights: float
    gradients: float
    optimizer: float
    sent: float


# By (is it mixed precision?, optimizer). Mixed precision keeps an fp32 copy with the optimizer, as ZeRO counts it (K =
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
    """`data` × `tensor` × `pipeline` ranks: tensor-parallel neighbours first, pipeline stages last, as Megatron numbers
    them.

    `shard` is divided over the data-parallel ranks, or with `replicas` (HSDP) over those of one of that many replicas.
    `overlap` hides messages behind computing; `buckets`: gradients are copied to be sent, as DDP does by default.
    `state` overrides the bytes of a parameter.
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
    state: State | None = None

    def __post_init__(self):
        for name in ("data", "tensor", "pipeline", "replicas", "micro_batch", "chunks"):
            require(name, getattr(self, name), int)
        for name, known in (("shard", SHARDS), ("checkpointing", CHECKPOINTING), ("schedule", SCHEDULES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it can be {', '.join(known)}")
        if self.data % self.replicas:
            raise ValueError(f"replicas is {self.replicas}, which does not divide data, {self.data}")
        if (self.chunks > 1) != (self.schedule == "interleaved"):
            raise ValueError(
                f"chunks is {self.chunks} with schedule {self.schedule!r}: only interleaved stages have several"
            )
        if self.state is None:
            is_mixed = self.precision in ("fp16", "bf16")
            if (is_mixed, self.optimizer) not in STATES:
                raise ValueError(
                    f"optimizer is {self.optimizer!r}; it can be sgd, momentum or adam, or give state=State(…)"
                )
            object.__setattr__(self, "state", STATES[is_mixed, self.optimizer])

    @property
    def world_size(self):
        return self.data * self.tensor * self.pipeline

    @property
    def shards(self):
        """The ranks that divide what `shard` names."""
        return 1 if self.shard == "none" else self.data // self.replicas

    def divides(self, what):
        """Whether `what` ("optimizer", "gradients" or "full") is divided."""
        return SHARDS.index(self.shard) >= SHARDS.index(what)

    def shards_of(self, what):
        """Among how many ranks `what` is divided."""
        return self.shards if self.divides(what) else 1


def parameters_of(layers, method):
    """How many of the layers' parameters one of the tensor-parallel ranks has, before they are sharded."""
    return sum(layer.parameters for layer in layers) / method.tensor


def stages(network, num_stages):
    """The layers of each stage, blocks in equal numbers (the first stages have one more), the rest beside their
    neighbours.

    Raises ValueError where there are fewer blocks than stages.
    """
    blocks = [i for i, layer in enumerate(network.layers) if layer.is_block]
    if num_stages > len(blocks):
        raise ValueError(
            f"pipeline is {num_stages}, and the model has {len(blocks)} blocks: a stage needs at least one"
        )
    each, more = divmod(len(blocks), num_stages)
    begins = [0, *(blocks[i * each + min(i, more)] for i in range(1, num_stages)), len(network.layers)]
    return [network.layers[begin:end] for begin, end in zip(begins, begins[1:])]
