"""The messages of data parallelism that computing does not hide: gradients, shards of the model, replicas."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from .clusters import Cluster
from .collective_costs import Group, all_reduce, beside, half
from .lines import Line, in_words
from .methods import Method, dense_parameters, expert_parameters, parameters_of
from .networks import Layer

BUCKET = 25e6  # bytes of gradients that DDP sends at once


def messages(
    cut: Sequence[Sequence[Layer]], forward_s: float, backward_s: float, cluster: Cluster, method: Method, m: int
) -> list[Line]:
    """The Lines of a step of `m` micro-batches, each of `forward_s` and `backward_s`; `cut` are the stages' layers."""
    fullest = max(cut, key=lambda layers: parameters_of(layers, method))
    copies, shards = (method.copies, method.expert_copies), (method.shards, method.expert_shards)

    def behind_backward(name, line, least=0.0):
        exposed = max(least, beside(line.value, backward_s)) if method.overlap else line.value
        hides = ", minus what the backward pass hides" if method.overlap else ""
        return Line(name, exposed, "s", f"all-reduce, {in_words(line.value, 's')}{hides}: {line.formula}", line.source)

    if not method.divides("full"):
        line = _over(all_reduce, fullest, copies, cluster, method)
        last = _over(all_reduce, fullest, copies, cluster, method, most=BUCKET)  # waits for the last gradient
        return [behind_backward("gradients' messages", line, last.value)] if line.value else []
    each = _over(half, fullest, shards, cluster, method)
    if not each.value:
        return []
    largest = max((layer for layers in cut for layer in layers), key=lambda layer: parameters_of([layer], method))
    first = _over(half, [largest], shards, cluster, method).value
    exposed = 3 * m * each.value
    if method.overlap:
        exposed = m * (beside(each.value, forward_s) + beside(2 * each.value, backward_s)) + 2 * first
    hides = ", minus what computing hides" if method.overlap else ""
    found = [Line("shards' messages", exposed, "s", f"3 × {m} × {in_words(each.value, 's')}{hides}: {each.formula}",
                  each.source)]  # fmt: skip
    if method.replicas > 1:
        replicas = method.replicas, method.expert_copies // method.expert_shards
        line = _over(all_reduce, fullest, replicas, cluster, method, divided=shards)
        found.append(behind_backward("replicas' messages", line))
    return found


def _over(collective, layers, sizes, cluster, method, divided=(1, 1), most=inf):
    """The Line of a collective on all parameters but those of experts, then on those, in groups of these two `sizes`.

    Ranks of a group are as far from each other as the parameters are divided, by the method and into `divided` parts.
    """
    numbers = dense_parameters(layers, method), expert_parameters(layers, method)
    lines = []
    for number, size, stride, parts in zip(numbers, sizes, (method.tensor, method.expert), divided):
        if number and size > 1:
            group = Group.of(size, stride * parts, cluster)
            lines.append(collective(min(method.state.sent * number / parts, most), group, cluster))
    if not lines:
        return Line("", 0.0, "s")
    formula = "; of experts, ".join(line.formula for line in lines)
    return replace(lines[0], value=sum(line.value for line in lines), formula=formula)
