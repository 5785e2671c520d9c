"""A model's costs per layer and sample: parameters, products, bytes moved, bytes kept.

A transformer's numbers follow from its sizes; any other model is counted from its module (`counting`).
"""

from dataclasses import dataclass, replace

from .products import Product
from .sizes import require

# How many times the bytes of fused kernels PyTorch moves operation by operation: autocast computes norms and sums in
# float32, and each cast is an operation of its own.
EAGER = 3.6


@dataclass(frozen=True)
class Work:
    """The work of one sample.

    `flops` are those of the forward matrix products (backward takes twice as many), whose shapes, if known, are in
    `shapes`. Else `idle` is the FLOP lost to GPU lanes that narrow products leave idle, and `products` are the bytes
    that products read and write, where that may take longer. `forward` and `backward` are the bytes that everything
    else reads and writes. `kept` are the bytes of activations kept for the backward pass, `briefly` those that exist
    only while the layer's own backward pass runs. `calls` is the number of operations that Python calls in the forward
    pass.
    """

    flops: float = 0.0
    shapes: tuple[Product, ...] = ()
    idle: float = 0.0
    products: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    kept: float = 0.0
    briefly: float = 0.0
    calls: int = 0


@dataclass(frozen=True)
class Layer:
    """A part that pipelines do not cut and that FSDP gathers as one; `output` is in bytes per sample.

    A layer that is not a block (embedding, head) stays on the stage of its neighbour and is not recomputed.

    Tensor parallelism divides `split` and `core`; `core` is the attention that selective recomputation repeats. Every
    rank does all of `whole`, unless the sequence is divided too. `all_reduces` is the number of outputs summed over
    ranks forward, and again backward.

    A mixture of experts has `experts`: their number, together `expert_parameters`, their `expert_work` on a sample's
    tokens, each at the experts chosen for it, and the bytes `dispatched` to them, which come back as their results.
    """

    name: str
    parameters: float
    output: float
    whole: Work = Work()
    split: Work = Work()
    core: Work = Work()
    all_reduces: int = 0
    is_block: bool = True
    experts: int = 0
    expert_parameters: float = 0.0
    expert_work: Work = Work()
    dispatched: float = 0.0

    @property
    def calls(self) -> int:
        """The operations that Python calls in the forward pass, whatever their size."""
        return self.whole.calls + self.split.calls + self.core.calls + self.expert_work.calls

    def on_rank(self, what: str, tensor: int = 1, is_sequence_divided: bool = False) -> float:
        """The quantity `what` of Work ("flops", "kept", …) on one of `tensor` ranks."""
        whole = getattr(self.whole, what) / (tensor if is_sequence_divided else 1)
        return whole + sum(getattr(work, what) for work in (self.split, self.core, self.expert_work)) / tensor


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
        """All experts included."""
        return sum(layer.parameters + layer.expert_parameters for layer in self.layers)

    @property
    def experts(self) -> int:
        """The number of experts of a block, or 0."""
        return max(layer.experts for layer in self.layers)

    @property
    def flops(self) -> float:
        """FLOP of the forward matrix products for one sample."""
        return sum(layer.on_rank("flops") for layer in self.layers)


# Of a block: two norms, four products, reshaping of heads, scores with softmax and dropout, two additions with dropout.
_BLOCK_CALLS = 17
# Beside those: the router, its softmax and choice, counting, and sorting before and after each of two messages.
_EXPERT_CALLS = 13


def _weights(shapes):
    return sum(shape.columns * shape.depth for shape in shapes)


def _of_norms(elements, element_bytes, dropout, fused):
    """The Work of two norms (read, write) and two residual additions with dropout (read two, write one, the mask)."""
    e, mask, more = element_bytes, 1 if dropout else 0, 1 if fused else EAGER
    return Work(
        forward=more * elements * (10 * e + 2 * mask),
        backward=more * elements * ((16 if dropout else 12) * e + 2 * mask),
        kept=elements * (4 * e + 2 * mask),  # inputs of both norms and both products, two masks
        calls=_BLOCK_CALLS,
    )


def _of_products(shapes, width, element_bytes):
    """The Work of a block's products with weights, and of an activation function that reads and writes `width`."""
    wide, attended = shapes[:2]
    s, moved = attended.rows, attended.rows * width * element_bytes
    # Kept: queries, keys, values, context; input and output of the activation function.
    kept = s * element_bytes * (wide.columns + attended.depth) + moved
    flops = sum(2 * s * shape.columns * shape.depth for shape in shapes)
    return Work(flops, shapes, forward=moved, backward=1.5 * moved, kept=kept)


def _of_experts(shapes, width, element_bytes):
    """The Work of a block's experts, whose activation function reads and writes `width`, with the way there and back.

    Before and after each of two messages tokens are sorted, which reads and writes them.
    """
    last = shapes[-1]
    rows, flops = last.rows, sum(2 * last.rows * shape.columns * shape.depth for shape in shapes)
    activation, tokens = rows * width * element_bytes, rows * last.columns * element_bytes
    forward, backward = activation + 8 * tokens, 1.5 * activation + 8 * tokens
    # Kept: the experts' inputs and results, the activation function's input and output.
    kept = 2 * tokens + activation
    return Work(flops, shapes, forward=forward, backward=backward, kept=kept, calls=_EXPERT_CALLS)


def _with_experts(block, shapes, work, dispatched):
    """The block with experts instead of its feed-forward layer; the first of `shapes` has a router beside it."""
    first = shapes[0]
    parameters = block.parameters + first.experts * first.depth
    return replace(
        block, parameters=parameters, all_reduces=1, experts=first.experts,
        expert_parameters=first.experts * _weights(shapes), expert_work=work, dispatched=dispatched,
    )  # fmt: skip


def _of_attention(hidden, heads, sequence, element_bytes, dropout, is_fused):
    """The Work of attention's scores, with softmax and dropout as kernels of their own unless `is_fused`."""
    flops, width = 4 * sequence * sequence * hidden, hidden // heads
    if is_fused:
        return Work(flops)
    shapes = (Product(sequence, sequence, width, "count", heads), Product(sequence, width, sequence, "count", heads))
    scores, e, mask = heads * sequence * sequence, element_bytes, 1 if dropout else 0
    forward = (4 if dropout else 2) * e + mask  # read, write
    backward = (5 if dropout else 3) * e + mask  # gradient, output, write
    kept = (2 if dropout else 1) * e + mask
    return Work(flops, shapes, forward=scores * forward, backward=scores * backward, kept=scores * kept)


def _of_head(hidden, sequence, vocabulary, element_bytes, fused, fused_loss):
    """The Work of the product with the vocabulary, and of the loss in fp32, whose softmax makes two passes each way.

    The logits are kept as the product made them, in fp32, and as logarithms of probabilities. Their gradient is fp32;
    unless `fused`, a second one is in the product's own precision.
    """
    logits, shape = sequence * vocabulary, Product(sequence, vocabulary, hidden, "columns")
    flops, kept = 2 * sequence * hidden * vocabulary, (element_bytes + 8) * logits
    if fused_loss:
        moved = 2 * element_bytes * logits
        return Work(flops, (shape,), forward=moved, backward=moved, kept=element_bytes * logits)
    briefly = (4 if fused else 4 + element_bytes) * logits
    return Work(flops, (shape,), forward=8 * logits, backward=8 * logits, kept=kept, briefly=briefly)


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
    dropout: bool = True, fused_attention: bool = False, fused_loss: bool = False, fused: bool = True,
    element_bytes: int = 2, experts: int = 0, chosen: int = 2,
) -> Network:  # fmt: skip
    """A decoder of `layers` blocks; a sample is one sequence.

    The defaults give the GPT of Narayanan and others (2021), with parameters 12lh²(1 + 13/(12h) + (V+s)/(12lh)) and
    24sh² + 4s²h forward FLOP per block, and of Korthikanti and others (2022), with 34 + 5as/h bytes kept per block,
    token and hidden element. `fused_attention` keeps no scores, recomputes them, and skips pairs that a causal mask
    hides; `fused_loss` turns the logits into their gradient in place. Norms, dropout, additions and activation
    functions are `fused` kernels, as Megatron's and a compiler's are, or run operation by operation. With `experts`,
    each block has that many feed-forward layers, without biases, of which each token visits `chosen` (Fedus and others,
    2022), equally many tokens each. Raises ValueError for impossible sizes.
    """
    _require_sizes(
        hidden=hidden, layers=layers, heads=heads, sequence=sequence, vocabulary=vocabulary,
        feed_forward=1 if feed_forward is None else feed_forward, kv_heads=heads if kv_heads is None else kv_heads,
    )  # fmt: skip
    if experts:
        require("experts", experts, int)
        require("chosen", chosen, int)
        if chosen > experts:
            raise ValueError(f"chosen is {chosen} of {experts} experts: a token visits each at most once")
    h, s, e, width = hidden, sequence, element_bytes, feed_forward or 4 * hidden
    kv = h * (kv_heads or heads) // heads  # width of keys and of values
    vectors = (2 * h + 2 * kv + (0 if experts else width) + h if biases else 0) + (4 if biases else 2) * h
    norms, core = _of_norms(s * h, e, dropout, fused), _of_attention(h, heads, s, e, dropout, fused_attention)
    attention = (Product(s, h + 2 * kv, h, "columns"), Product(s, h, h, "depth"))
    inner, active = (2 if gated else 1) * width, (3 if gated else 2) * width  # columns; read and written between
    shapes = attention if experts else (*attention, Product(s, inner, h, "columns"), Product(s, h, width, "depth"))
    split = _of_products(shapes, 0 if experts else active, e)
    block = Layer("block", vectors + _weights(shapes), s * h * e, norms, split, core, all_reduces=2)
    if experts:
        rows = s * chosen
        visited = (Product(rows, inner, h, "rows", 0, experts), Product(rows, h, width, "rows", 0, experts))
        block = _with_experts(block, visited, _of_experts(visited, active, e), rows * h * e)
    lookup = Work(forward=2 * s * h * e, backward=2 * s * h * e, kept=s * h * int(dropout))
    embedding = (vocabulary + (s if positions else 0)) * h
    first = Layer("embedding", embedding, s * h * e, lookup, is_block=False)
    loss = _of_head(h, s, vocabulary, e, fused, fused_loss)
    last = Layer("head", 0 if tied else vocabulary * h, s * h * e, split=loss, is_block=False)
    widths = [("heads of keys and values", kv_heads or heads), ("columns of a feed-forward layer", width)]
    return Network((first, *layers * (block,), last), s, heads, tuple(widths[:1] if experts else widths))
