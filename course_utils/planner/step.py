"""The seconds of a training step, term by term."""

from .clusters import Group
from .lines import Line, total
from .methods import parameters_of

_RING = "a ring: 2(n−1)/n bytes over the bus bandwidth, 2(n−1) hops"


def step(cut, cluster, method, num_micro_batches):
    """The Line of one optimizer step: products, the rest, messages that nothing hides, the pipeline's bubble, the update.

    `cut` are the stages' layers.
    """
    times = [_micro_batch(layers, cluster, method) for layers in cut]
    slowest = max(times, key=lambda line: line.value)
    m = num_micro_batches
    own = max(parameters_of(layers, method) for layers in cut)
    fill = (sum(line.value for line in times) - slowest.value) / method.chunks
    parts = [
        Line("micro-batches", m * slowest.value, "s", f"{m} × the slowest stage's", parts=(slowest,)),
        Line("bubble", fill, "s", "one micro-batch's way through the other stages"
             + (f" / {method.chunks} chunks" if method.chunks > 1 else ""), "Narayanan and others, 2021"),
        *_gradients(cut, own, slowest, cluster, method, m),
        _update(own, cluster, method),
    ]  # fmt: skip
    return total("step", "s", parts)


def _micro_batch(layers, cluster, method):
    """Forward and backward of one micro-batch on one stage."""
    b, t, is_divided = method.micro_batch, method.tensor, method.sequence_parallel
    flops_per_s = cluster.gpu.peak(method.precision) * cluster.gpu.efficiency.matrix
    bytes_per_s = cluster.gpu.bandwidth * cluster.gpu.efficiency.memory
    blocks = [layer for layer in layers if layer.is_block]
    again = blocks if method.checkpointing == "full" else ()

    def products(layers):
        each = ((layer.on_rank("flops", t), layer.whole.products) for layer in layers)
        return b * sum(max(flops / flops_per_s, moved / bytes_per_s) for flops, moved in each)

    def rest(layers, way):
        return b / bytes_per_s * sum(layer.on_rank(way, t, is_divided) for layer in layers)

    all_reduce = _all_reduce_s(layers, cluster, method)
    weights = products(layers)  # half of the backward products, which need no message
    hidden = 0 if is_divided else min(all_reduce, weights)
    parts = [
        Line("forward products", products(layers), "s", "FLOP / (peak × efficiency), or bytes / (bandwidth × efficiency)"),
        Line("forward, the rest", rest(layers, "forward"), "s", "bytes read and written / (bandwidth × efficiency)"),
        Line("forward messages", all_reduce, "s", f"tensor parallel: {_RING}"),
        Line("backward products", 2 * products(layers), "s", "twice the forward's"),
        Line("backward, the rest", rest(layers, "backward"), "s", "bytes read and written / (bandwidth × efficiency)"),
        Line("backward messages", all_reduce - hidden, "s", "tensor parallel, but for what the weights' gradients hide"),
        Line("products again", products(again), "s", "full recomputation"),
        Line("the rest again", rest(again, "forward"), "s", "full recomputation"),
        Line("messages again", all_reduce if again else 0, "s", "full recomputation"),
        Line("messages between stages", _between_s(layers, cluster, method), "s", "a block's output there, its gradient back"),
    ]
    if method.checkpointing == "selective":
        flops, moved = (sum(getattr(layer.core, what) for layer in blocks) for what in ("flops", "forward"))
        parts.append(Line("attention again", b / t * (flops / flops_per_s + moved / bytes_per_s), "s", "selective recomputation"))
    return total("a micro-batch", "s", parts)


def _all_reduce_s(layers, cluster, method):
    """One direction's all-reduces of tensor parallelism, or the reduce-scatters and all-gathers that take their place."""
    group = Group.of(method.tensor, 1, cluster)
    return sum(layer.all_reduces * all_reduce_s(method.micro_batch * layer.output, group, cluster) for layer in layers)


def _between_s(layers, cluster, method):
    """A stage's messages to its neighbours: each of the tensor-parallel ranks sends its part, over its own network card."""
    if method.pipeline == 1:
        return 0.0
    is_inside = method.world_size <= cluster.gpus_per_node
    bytes_per_s = cluster.inside if is_inside else cluster.between / cluster.gpus_per_node
    num_bytes = method.micro_batch * layers[0].output / method.tensor
    return 4 * method.chunks * (num_bytes / bytes_per_s + cluster.latency_between)


def _gradients(cut, own, slowest, cluster, method, m):
    """What data parallelism sends in a step and nothing hides."""
    if method.data == 1:
        return []
    sent = method.state.sent
    backward = sum(line.value for line in slowest.parts if line.name.startswith(("backward", "products again", "the rest again")))
    if not method.divides("full"):
        group = Group.of(method.data, method.tensor, cluster)
        seconds = all_reduce_s(sent * own, group, cluster)
        last = all_reduce_s(min(sent * own, 25e6), group, cluster)  # the last bucket waits for the last gradient
        exposed = max(last, seconds - backward) if method.overlap else seconds
        what = f"all-reduce of {sent * own:,.0f} B among {method.data} ranks, {seconds:.3g} s"
        return [Line("gradients' messages", exposed, "s", what + (", behind the backward pass" if method.overlap else ""))]
    group = Group.of(method.shards, method.tensor, cluster)
    largest = max(parameters_of([layer], method) for layers in cut for layer in layers)
    each, first = (_half_s(sent * number, group, cluster) for number in (own, largest))
    forward = slowest.value - backward
    exposed = m * (max(0.0, each - forward) + max(0.0, 2 * each - backward)) + 2 * first if method.overlap else 3 * m * each
    found = [Line("shards' messages", exposed, "s", f"3 × {each:.3g} s a micro-batch, but for what computing hides")]
    if method.replicas > 1:
        across = Group.of(method.replicas, method.tensor * method.shards, cluster)
        seconds = all_reduce_s(sent * own / method.shards, across, cluster)
        found.append(Line("replicas' messages", max(0.0, seconds - backward) if method.overlap else seconds, "s", "all-reduce of a shard"))
    return found


def _update(own, cluster, method):
    state, over = method.state, method.shards
    moved = state.gradients + 2 * state.optimizer + state.weights
    seconds = own / over * moved / (cluster.gpu.bandwidth * cluster.gpu.efficiency.memory)
    return Line("update", seconds, "s", f"{moved:g} B read and written for each of {own / over:,.0f} parameters")


def all_reduce_s(num_bytes, group, cluster):
    """Seconds of a ring all-reduce of a tensor of `num_bytes`."""
    return 2 * _half_s(num_bytes, group, cluster)


def _half_s(num_bytes, group, cluster):
    """Seconds of a reduce-scatter or an all-gather, of whose whole `num_bytes` are: half an all-reduce."""
    n = group.size
    if n == 1:
        return 0.0
    far = group.nodes if group.nodes > 1 else 0
    slowest = cluster.inside if not far else min(cluster.inside, cluster.between * group.per_node / cluster.gpus_per_node)
    hops = (n - 1 - max(0, far - 1)) * cluster.latency_inside + max(0, far - 1) * cluster.latency_between
    return (n - 1) / n * num_bytes / slowest + hops
