"""The seconds of a training step, term by term."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from .clusters import Cluster
from .collective_costs import Group, all_reduce, all_to_all, beside, half, send
from .data_messages import messages
from .lines import Line, in_words, total
from .methods import Method, held_parameters
from .networks import Layer

# The kind of each line of a micro-batch. Recomputation belongs to the backward pass, so messages hide behind it too.
FORWARD, BACKWARD = WAYS = "forward", "backward"
_TILES = "FLOP / (peak × efficiency), in tiles over the multiprocessors, or bytes / (bandwidth × efficiency)"
_ATTENTION = "half the FLOP of all pairs / (peak × efficiency of fused attention)"
_BYTES = "bytes read and written / (bandwidth × efficiency)"
_AGAIN = "full recomputation"


def step(cut: Sequence[tuple[Layer, ...]], cluster: Cluster, method: Method, num_micro_batches: int) -> Line:
    """The Line of one optimizer step: products, the rest, exposed messages, pipeline bubble, update.

    `cut` are the layers of each stage.
    """
    known: dict[tuple[Layer, ...], Line] = {}  # most stages are alike
    times = [known.get(layers) or known.setdefault(layers, _micro_batch(layers, cluster, method)) for layers in cut]
    slowest = max(times, key=lambda line: line.value)
    m = num_micro_batches
    backward_s = sum(line.value for line in slowest.parts if line.kind == BACKWARD)
    fill = (sum(line.value for line in times) - slowest.value) / method.chunks
    parts = [
        Line(
            "micro-batches",
            m * slowest.value,
            "s",
            f"{m} × this" + (", the slowest stage's" if len(cut) > 1 else ""),
            parts=(slowest,),
        ),
        Line(
            "bubble",
            fill,
            "s",
            "one micro-batch's way through the other stages"
            + (f" / {method.chunks} chunks" if method.chunks > 1 else ""),
            "Narayanan and others, 2021",
        ),
        *messages(cut, slowest.value - backward_s, backward_s, cluster, method, m),
        _update(cut, cluster, method),
    ]
    return total("step", "s", parts)


def _micro_batch(layers, cluster, method):
    """The Line of forward and backward of one micro-batch on one stage."""
    kinds = Counter(layers)
    blocks = {layer: count for layer, count in kinds.items() if layer.is_block}
    again = blocks if method.checkpointing == "full" else {}
    times = {layer: _of_layer(layer, cluster, method) for layer in kinds}

    def line(kind, name, what, formula, kinds=kinds):
        return Line(name, sum(count * times[layer][what] for layer, count in kinds.items()), "s", formula, kind=kind)

    parts = [
        line(FORWARD, "forward products", "forward products", _TILES),
        line(FORWARD, "forward attention", "forward attention", _ATTENTION),
        line(FORWARD, "forward, the rest", "forward rest", _BYTES),
        line(BACKWARD, "backward products", "backward products", f"gradients of inputs and weights: {_TILES}"),
        line(BACKWARD, "backward attention", "backward attention", f"2.5 times the forward's: {_ATTENTION}"),
        line(BACKWARD, "backward, the rest", "backward rest", _BYTES),
        line(BACKWARD, "products again", "products again", _AGAIN, again),
        line(BACKWARD, "attention again", "forward attention", _AGAIN, again),
        line(BACKWARD, "the rest again", "forward rest", _AGAIN, again),
    ]
    if method.checkpointing == "selective":
        parts.append(line(BACKWARD, "attention again", "core", "selective recomputation", blocks))
    elif method.checkpointing == "operations":
        second = line(BACKWARD, "products again", "weighted products", "of every second product", blocks)
        parts += [
            replace(second, value=second.value / 2),
            line(BACKWARD, "the rest again", "forward rest", "its inputs", blocks),
        ]
    parts += _tensor_messages(kinds, cluster, method, parts[3].value)
    parts += _context_messages(kinds, cluster, method, parts)
    parts += _expert_messages(kinds, cluster, method)
    computing_s = sum(part.value for part in parts)
    parts.append(_between_stages(layers, cluster, method, computing_s))
    calls = sum(count * layer.calls * (4 if layer in again else 3) for layer, count in kinds.items())
    waiting = max(0.0, calls * cluster.call - sum(part.value for part in parts))
    said = f"{calls} operations × {in_words(cluster.call, 's')}, minus what the GPU does meanwhile"
    parts.append(Line("waiting for Python", waiting, "s", said, kind=BACKWARD))
    return total("a micro-batch", "s", parts)


def _of_layer(layer, cluster, method):
    """Seconds of one layer for one micro-batch, {what: seconds}."""
    b, t, gpu = method.samples, method.tensor, cluster.gpu
    # In fp8 are only the products of blocks with weights.
    sixteen = "bf16" if method.precision == "fp8" else method.precision
    peak, shares, bytes_per_s = gpu.peak(sixteen), gpu.efficiency, gpu.bandwidth * gpu.efficiency.memory

    def of_shapes(shapes, precision):
        return [shape.seconds(b, t, gpu, precision, method.expert) for shape in shapes]

    found = Counter({f"{way} rest": b * layer.on_rank(way, t, method.sequence_parallel) / bytes_per_s for way in WAYS})
    scores = of_shapes(layer.core.shapes, sixteen)
    with_weights = (*layer.split.shapes, *layer.expert_work.shapes)
    weighted = of_shapes(with_weights, method.precision if layer.is_block else sixteen)
    pairs = [*weighted, *scores]
    found["weighted products"] = sum(forward for forward, _ in weighted)
    for work, over in ((layer.whole, 1), (layer.split, t)):
        if not work.shapes:
            seconds = b / over * max((work.flops + work.idle) / (peak * shares.matrix), work.products / bytes_per_s)
            pairs.append((seconds, 2 * seconds))
    found["forward products"], found["backward products"] = map(sum, zip(*pairs))
    found["products again"] = found["forward products"]
    if method.stops_early and weighted:
        found["products again"] -= weighted[-1][0]
    if scores:
        found["core"] = sum(forward for forward, _ in scores) + b / t * layer.core.forward / bytes_per_s
    else:  # fused; a causal mask hides half of the pairs
        share = (shares.native_attention if method.native_attention else 0) or shares.attention
        found["forward attention"] = b / t * layer.core.flops / 2 / (peak * share)
        found["backward attention"] = 2.5 * found["forward attention"]
    return found


def _tensor_messages(kinds, cluster, method, backward_products_s):
    """The Lines of tensor parallelism's messages that no products hide."""
    messages, said = _inside_layers(kinds, cluster, method)
    backward, hides = messages, ""
    if method.tensor_overlap:
        messages = backward = messages / method.tensor
        hides = f", sent in {method.tensor} pieces, of which products hide all but the first"
    elif method.overlap and not method.sequence_parallel:  # the weights' gradients, half of these products, need none
        backward -= min(messages, backward_products_s / 2)
        hides = ", minus what the weights' gradients hide"
    lines = [
        Line("forward messages", messages, "s", f"tensor parallel: {said}", kind=FORWARD),
        Line("backward messages", backward, "s", f"tensor parallel{hides}", kind=BACKWARD),
    ]
    if method.checkpointing == "full":
        lines.append(Line("messages again", messages, "s", _AGAIN, kind=BACKWARD))
    return lines


def _inside_layers(kinds, cluster, method):
    """Seconds of tensor parallelism's all-reduces in one direction, and the formula of one."""
    group, seconds, said = Group.of(method.tensor, 1, cluster), 0.0, ""
    for layer, count in kinds.items():
        if not layer.all_reduces or group.size == 1:
            continue
        num_bytes = method.samples * layer.output
        # With a divided sequence, a reduce-scatter and an all-gather replace the all-reduce.
        line = (
            all_reduce(num_bytes, group, cluster) if not method.sequence_parallel else half(num_bytes, group, cluster)
        )
        seconds += count * layer.all_reduces * line.value * (2 if method.sequence_parallel else 1)
        said = line.formula
    return seconds, said


def _context_messages(kinds, cluster, method, parts):
    """The Lines of ring attention's messages: each rank's keys and values pass all others, and their gradients return.

    They hide behind attention; a zigzag gives every rank the same part of it.
    """
    if method.context == 1:
        return []
    hops = method.context - 1
    is_inside = method.tensor * method.context <= cluster.gpus_per_node
    seconds, said = 0.0, ""
    for layer, count in kinds.items():
        if layer.is_block:
            wide, attended = layer.split.shapes[:2]  # queries, keys and values; attention's output
            share = (wide.columns - attended.columns) / attended.columns  # of keys and values, in a block's output
            line = send(method.samples * layer.output * share / method.tensor, is_inside, cluster)
            seconds, said = seconds + count * hops * line.value, line.formula
    computing = {name: next(part.value for part in parts if part.name == name) for name in _RING}
    lines = []
    for (name, behind), times in zip(_RING.items(), (1, 2)):
        exposed = beside(times * seconds, computing[name]) if method.overlap else times * seconds
        kind = FORWARD if times == 1 else BACKWARD
        formula = f"{times} × {hops} hops of keys and values a block, minus what attention hides: {said}"
        lines.append(Line(behind, exposed, "s", formula, "Liu and others, 2023", kind=kind))
    return lines


def _expert_messages(kinds, cluster, method):
    """The Lines of the messages that take tokens to their experts and bring the results back; nothing hides them."""
    if method.expert == 1:
        return []
    group, seconds, said = Group.of(method.expert, 1, cluster), 0.0, ""
    for layer, count in kinds.items():
        if layer.experts:
            line = all_to_all(method.samples * layer.dispatched / method.tensor, group, cluster)
            seconds, said = seconds + 2 * count * line.value, line.formula
    again = [("experts' messages again", BACKWARD)] if method.checkpointing == "full" else []
    names = [("experts' forward messages", FORWARD), ("experts' backward messages", BACKWARD), *again]
    formula = f"there and back for each block, {said}"
    return [Line(name, seconds, "s", formula, "Lepikhin and others, 2020", kind=kind) for name, kind in names]


# What hides the ring's messages, and what their line is called.
_RING = {
    "forward attention": "context's forward messages",
    "backward attention": "context's backward messages",
}


def _between_stages(layers, cluster, method, computing_s):
    """The Line of a stage's messages to its neighbours; each tensor-parallel rank sends its part."""
    if method.pipeline == 1:
        return Line("messages between stages", 0.0, "s")
    num_bytes = method.samples * layers[0].output / (method.tensor if method.divided_messages else 1)
    line = send(num_bytes, method.world_size <= cluster.gpus_per_node, cluster)
    formula = f"a block's output there, its gradient back: 4 × {method.chunks} × {line.formula}"
    seconds = 4 * method.chunks * line.value
    # With INTERFERENCE, the seven rows of NeMo 24.12 that have stages are 7 to 22 % too slow.
    if method.pipeline_overlap:
        seconds, formula = max(0.0, seconds - computing_s), f"{formula}, minus what computing hides"
    return Line("messages between stages", seconds, "s", formula, line.source)


def _update(cut, cluster, method):
    state = method.state
    number = max(held_parameters(layers, method, method.shard) for layers in cut)
    moved = state.gradients + 2 * state.optimizer + state.weights
    seconds = number * moved / (cluster.gpu.bandwidth * cluster.gpu.efficiency.memory)
    return Line("update", seconds, "s", f"{moved:g} B read and written for each of {number:,.0f} parameters")
