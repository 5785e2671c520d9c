"""A model's costs per layer and sample: parameters, products, bytes moved, bytes kept.

A transformer's numbers follow from its sizes; any other model is counted from its module (`counting`).
"""

from dataclasses import dataclass

from .sizes import require


@dataclass(frozen=True)
class Work:
    """The work of one sample.

    `flops` are those of the forward matrix products (backward takes twice as many). `idle` is the FLOP lost to GPU
    lanes that narrow products leave idle. `products` are the bytes that products read and write, where that may take
    longer. `forward` and `backward` are the bytes that everything else reads and writes. `kept` are the bytes of
    activations kept for the backward pass.
    """

    flops: float = 0.0
    idle: float = 0.0
    products: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    kept: float = 0.0


@dataclass(frozen=True)
class Layer:
    """A part that pipelines do not cut and that FSDP gathers as one; `output` is in bytes per sample.

    A layer that is not a block (embedding, head) stays on the stage of its neighbour and is not recomputed.

    Tensor parallelism divides `split` and `core`; `core` is the attention that selective recomputation repeats. Every
    rank does all of `whole`, unless the sequence is divided too. `all_reduces` is the number of outputs summed over
    ranks forward, and again backward.
    """

    name: str
    parameters: float
    output: float
    whole: Work = Work()
    split: Work = Work()
    core: Work = Work()
    all_reduces: int = 0
    is_block: bool = True

    def on_rank(self, what: str, tensor: int = 1, is_sequence_divided: bool = False) -> float:
        """The quantity `what` of Work ("flops", "kept", …) on one of `tensor` ranks."""
        whole = getattr(self.whole, what) / (tensor if is_sequence_divided else 1)
        return whole + (getattr(self.split, what) + getattr(self.core, what)) / tensor


@dataclass(frozen=True)
class Network:
    """A list of layers; `tokens` per sample, or 1; `heads` that tensor parallelism divides, or None.

    `widths` are further numbers that it divides, as (what, number).
    """

    layers: tuple[Layer, ...]
    tokens: int = 1
    heads: int | None = None
    widths: tuple[tuple[str, int], ...] = ()

    @property
    def parameters(self) -> float:
        return sum(layer.parameters for layer in self.layers)

    @property
    def flops(self) -> float:
        """FLOP of the forward matrix products for one sample."""
        return sum(layer.on_rank("flops") for layer in self.layers)


def _of_norms(elements, element_bytes, dropout):
    """The Work of two norms (read, write) and two residual additions with dropout (read two, write one, the mask)."""
    e, mask = element_bytes, 1 if dropout else 0
    return Work(
        forward=elements * (10 * e + 2 * mask),
        backward=elements * ((16 if dropout else 12) * e + 2 * mask),
        kept=elements * (4 * e + 2 * mask),  # inputs of both norms and both products, two masks
    )


def _of_scores(scores, element_bytes, dropout):
    """Bytes that attention moves forward, moves backward, and keeps, for `scores` elements: softmax, then dropout."""
    e, mask = element_bytes, 1 if dropout else 0
    forward = (4 if dropout else 2) * e + mask  # read, write
    backward = (5 if dropout else 3) * e + mask  # gradient, output, write
    return scores * forward, scores * backward, scores * ((2 if dropout else 1) * e + mask)


def _require_sizes(**sizes):
    for name, size in sizes.items():
        require(name, size, int)
    heads, kv_heads, hidden = sizes["heads"], sizes["kv_heads"], sizes["hidden"]
    if heads % kv_heads:
        raise ValueError(f"kv_heads is {kv_heads}, which does not divide heads, {heads}")
    if hidden % heads:
        raise ValueError(f"heads is {heads}, which does not divide hidden, {hidden}")


def transformer(
    hidden: int, layers: int, heads: int, sequence: int, vocabulary: int, *, feed_forward: int | None = None,
    gated: bool = False, kv_heads: int | None = None, biases: bool = True, positions: bool = True, tied: bool = True,
    dropout: bool = True, fused_attention: bool = False, element_bytes: int = 2,
) -> Network:  # fmt: skip
    """A decoder of `layers` blocks; a sample is one sequence.

    The defaults give the GPT of Narayanan and others (2021), with parameters 12lh²(1 + 13/(12h) + (V+s)/(12lh)) and
    24sh² + 4s²h forward FLOP per block, and of Korthikanti and others (2022), with 34 + 5as/h bytes kept per block,
    token and hidden element. `fused_attention` keeps no scores and recomputes them. Raises ValueError for impossible
    sizes.
    """
    _require_sizes(
        hidden=hidden, layers=layers, heads=heads, sequence=sequence, vocabulary=vocabulary,
        feed_forward=1 if feed_forward is None else feed_forward, kv_heads=heads if kv_heads is None else kv_heads,
    )  # fmt: skip
    h, s, e, width = hidden, sequence, element_bytes, feed_forward or 4 * hidden
    kv = h * (kv_heads or heads) // heads  # width of keys and of values
    matrices = 2 * h * h + 2 * h * kv + (3 if gated else 2) * h * width
    vectors = (2 * h + 2 * kv + width + h if biases else 0) + (4 if biases else 2) * h
    scores = heads * s * s  # attention scores per sample
    inner = width * (3 if gated else 2) / h  # activation function's reads and writes, in units of h
    split = Work(
        flops=2 * s * matrices,
        forward=s * h * e * inner,
        backward=s * h * e * 1.5 * inner,
        # queries, keys, values, context; input and output of the activation function
        kept=s * e * (h + 2 * kv + h + (3 if gated else 2) * width),
    )
    core = Work(flops=4 * s * s * h)
    if not fused_attention:
        forward, backward, kept = _of_scores(scores, e, dropout)
        core = Work(flops=core.flops, forward=forward, backward=backward, kept=kept)
    output = s * h * e
    embedding = (vocabulary + (s if positions else 0)) * h
    lookup = Work(forward=2 * output, backward=2 * output, kept=s * h * int(dropout))
    first = Layer("embedding", embedding, output, lookup, is_block=False)
    blocks = layers * (
        Layer("block", matrices + vectors, output, _of_norms(s * h, e, dropout), split, core, all_reduces=2),
    )
    logits = 4.0 * s * vocabulary  # fp32: softmax and its gradient each make two passes
    last = Layer(
        "head",
        0 if tied else vocabulary * h,
        output,
        split=Work(flops=2 * s * h * vocabulary, forward=2 * logits, backward=2 * logits, kept=logits),
        is_block=False,
    )
    widths = (("heads of keys and values", kv_heads or heads), ("columns of a feed-forward layer", width))
    return Network((first, *blocks, last), tokens=s, heads=heads, widths=widths)
