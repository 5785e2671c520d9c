"""The seconds of a training step, term by term."""

from collections import Counter
from collections.abc import Sequence

from .clusters import Cluster
from .collective_costs import Group, all_reduce, half, send
from .lines import Line, in_words, total
from .methods import Method, parameters_of
from .networks import Layer

BUCKET = 25e6  # bytes of gradients that DDP sends at once
# The kind of each line of a micro-batch. Recomputation belongs to the backward pass, so messages hide behind it too.
FORWARD, BACKWARD = "forward", "backward"


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
    b, t, is_divided = method.micro_batch, method.tensor, method.sequence_parallel
    flops_per_s = cluster.gpu.peak(method.precision) * cluster.gpu.efficiency.matrix
    bytes_per_s = cluster.gpu.bandwidth * cluster.gpu.efficiency.memory
    kinds = Counter(layers)
    blocks = {layer: count for layer, count in kinds.items() if layer.is_block}
    again = blocks if method.checkpointing == "full" else {}

    def products(kinds):
        each = (
            (count, [layer.on_rank(what, t) for what in ("flops", "idle", "products")])
            for layer, count in kinds.items()
        )
        return b * sum(
            count * max((flops + idle) / flops_per_s, moved / bytes_per_s) for count, (flops, idle, moved) in each
        )

    def rest(kinds, way):
        return b / bytes_per_s * sum(count * layer.on_rank(way, t, is_divided) for layer, count in kinds.items())

    def line(kind, name, value, formula):
        return Line(name, value, "s", formula, kind=kind)

    messages, said = _inside_layers(kinds, cluster, method)
    forward = products(kinds)
    rest_formula = "bytes read and written / (bandwidth × efficiency)"
    hidden = 0 if is_divided else min(messages, forward)  # weight gradients, half of backward, need no message
    parts = [
        line(FORWARD, "forward products", forward, "FLOP / (peak × efficiency), or bytes / (bandwidth × efficiency)"),
        line(FORWARD, "forward, the rest", rest(kinds, "forward"), rest_formula),
        line(FORWARD, "forward messages", messages, f"tensor parallel: {said}"),
        line(BACKWARD, "backward products", 2 * forward, "twice the forward's"),
        line(BACKWARD, "backward, the rest", rest(kinds, "backward"), rest_formula),
        line(
            BACKWARD, "backward messages", messages - hidden, "tensor parallel, minus what the weights' gradients hide"
        ),
        line(BACKWARD, "products again", products(again), "full recomputation"),
        line(BACKWARD, "the rest again", rest(again, "forward"), "full recomputation"),
        line(BACKWARD, "messages again", messages if again else 0, "full recomputation"),
        _between_stages(layers, cluster, method),
    ]
    if method.checkpointing == "selective":
        flops, moved = (
            sum(count * getattr(layer.core, what) for layer, count in blocks.items()) for what in ("flops", "forward")
        )
        seconds = b / t * (flops / flops_per_s + moved / bytes_per_s)
        parts.append(line(BACKWARD, "attention again", seconds, "selective recomputation"))
    return total("a micro-batch", "s", parts)


def _inside_layers(kinds, cluster, method):
    """Seconds of tensor parallelism's all-reduces in one direction, and the formula of one."""
    group, seconds, said = Group.of(method.tensor, 1, cluster), 0.0, ""
    for layer, count in kinds.items():
        if not layer.all_reduces or group.size == 1:
            continue
        num_bytes = method.micro_batch * layer.output
        # With a divided sequence, a reduce-scatter and an all-gather replace the all-reduce.
        line = (
            all_reduce(num_bytes, group, cluster) if not method.sequence_parallel else half(num_bytes, group, cluster)
        )
        seconds += count * layer.all_reduces * line.value * (2 if method.sequence_parallel else 1)
        said = line.formula
    return seconds, said


def _between_stages(layers, cluster, method):
    """The Line of a stage's messages to its neighbours; each tensor-parallel rank sends its part."""
    if method.pipeline == 1:
        return Line("messages between stages", 0.0, "s")
    num_bytes = method.micro_batch * layers[0].output / method.tensor
    line = send(num_bytes, method.world_size <= cluster.gpus_per_node, cluster)
    formula = f"a block's output there, its gradient back: 4 × {method.chunks} × {line.formula}"
    return Line("messages between stages", 4 * method.chunks * line.value, "s", formula, line.source)


def _gradients(cut, own, slowest, cluster, method, m):
    """The Lines of data parallelism's messages that the backward pass does not hide."""
    if method.data == 1:
        return []
    sent = method.state.sent
    backward = sum(line.value for line in slowest.parts if line.kind == BACKWARD)

    def behind_backward(name, line, least=0.0):
        exposed = max(least, line.value - backward) if method.overlap else line.value
        hides = ", minus what the backward pass hides" if method.overlap else ""
        return Line(name, exposed, "s", f"all-reduce, {in_words(line.value, 's')}{hides}: {line.formula}", line.source)

    if not method.divides("full"):
        group = Group.of(method.data, method.tensor, cluster)
        last = all_reduce(min(sent * own, BUCKET), group, cluster).value  # the last bucket waits for the last gradient
        return [behind_backward("gradients' messages", all_reduce(sent * own, group, cluster), last)]
    group = Group.of(method.shards, method.tensor, cluster)
    largest = max(parameters_of([layer], method) for layers in cut for layer in layers)
    each, first = half(sent * own, group, cluster), half(sent * largest, group, cluster).value
    forward = slowest.value - backward
    exposed = 3 * m * each.value
    if method.overlap:
        exposed = m * (max(0.0, each.value - forward) + max(0.0, 2 * each.value - backward)) + 2 * first
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
