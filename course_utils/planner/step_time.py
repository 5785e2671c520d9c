"""The seconds of a training step, term by term."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from .clusters import Cluster
from .collective_costs import Group, all_reduce, half, send
from .lines import Line, in_words, total
from .methods import Method, parameters_of
from .networks import Layer

BUCKET = 25e6  # bytes of gradients that DDP sends at once
# The kind of each line of a micro-batch. Recomputation belongs to the backward pass, so messages hide behind it too.
FORWARD, BACKWARD = WAYS = "forward", "backward"
# The share of a hidden message's time by which it slows down what it hides behind, fitted to two published rows. Its
# kernels take multiprocessors and memory bandwidth, which may be why.
INTERFERENCE = 0.9

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
    own = max(parameters_of(layers, method) for layers in cut)
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
        *_gradients(cut, own, slowest, cluster, method, m),
        _update(own, cluster, method),
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
        return [shape.seconds(b, t, gpu, precision) for shape in shapes]

    found = Counter({f"{way} rest": b * layer.on_rank(way, t, method.sequence_parallel) / bytes_per_s for way in WAYS})
    scores = of_shapes(layer.core.shapes, sixteen)
    weighted = of_shapes(layer.split.shapes, method.precision if layer.is_block else sixteen)
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
    elif not method.sequence_parallel:  # the weights' gradients, half of these products, need no message
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
        exposed = _beside(times * seconds, computing[name]) if method.overlap else times * seconds
        kind = FORWARD if times == 1 else BACKWARD
        formula = f"{times} × {hops} hops of keys and values a block, minus what attention hides: {said}"
        lines.append(Line(behind, exposed, "s", formula, "Liu and others, 2023", kind=kind))
    return lines


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


def _beside(messages_s, computing_s):
    """The seconds that messages add to the computing that they hide behind."""
    hidden = min(messages_s, computing_s)
    return messages_s - hidden + INTERFERENCE * hidden


def _gradients(cut, own, slowest, cluster, method, m):
    """The Lines of data parallelism's messages that the backward pass does not hide."""
    if method.copies == 1:
        return []
    sent = method.state.sent
    backward = sum(line.value for line in slowest.parts if line.kind == BACKWARD)

    def behind_backward(name, line, least=0.0):
        exposed = max(least, _beside(line.value, backward)) if method.overlap else line.value
        hides = ", minus what the backward pass hides" if method.overlap else ""
        return Line(name, exposed, "s", f"all-reduce, {in_words(line.value, 's')}{hides}: {line.formula}", line.source)

    if not method.divides("full"):
        group = Group.of(method.copies, method.tensor, cluster)
        last = all_reduce(min(sent * own, BUCKET), group, cluster).value  # the last bucket waits for the last gradient
        return [behind_backward("gradients' messages", all_reduce(sent * own, group, cluster), last)]
    group = Group.of(method.shards, method.tensor, cluster)
    largest = max(parameters_of([layer], method) for layers in cut for layer in layers)
    each, first = half(sent * own, group, cluster), half(sent * largest, group, cluster).value
    forward = slowest.value - backward
    exposed = 3 * m * each.value
    if method.overlap:
        exposed = m * (_beside(each.value, forward) + _beside(2 * each.value, backward)) + 2 * first
    said = (
        f"3 × {m} × {in_words(each.value, 's')}{', minus what computing hides' if method.overlap else ''}: "
        f"{each.formula}"
    )
    found = [Line("shards' messages", exposed, "s", said, each.source)]
    if method.replicas > 1:
        across = Group.of(method.replicas, method.tensor * method.shards, cluster)
        found.append(behind_backward("replicas' messages", all_reduce(sent * own / method.shards, across, cluster)))
    return found


def _update(own, cluster, method):
    state, over = method.state, method.shards
    moved = state.gradients + 2 * state.optimizer + state.weights
    seconds = own / over * moved / (cluster.gpu.bandwidth * cluster.gpu.efficiency.memory)
    return Line("update", seconds, "s", f"{moved:g} B read and written for each of {own / over:,.0f} parameters")
