"""The time of a collective: that of the fastest algorithm the library has for it.

A ring takes n−1 hops for a reduce-scatter or all-gather ("half") and 2(n−1) for an all-reduce; a tree sums up to its
root and sends back down. NCCL has each in three protocols: Simple uses the whole bandwidth; LL sends a flag with every
word and LL128 one with every 120 bytes, which saves the fence between data and flag.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING

from .lines import Line, in_words

if TYPE_CHECKING:
    from .clusters import Cluster


@dataclass(frozen=True)
class Way:
    """An algorithm, "ring", "tree" or "half", in a protocol.

    "half" is for reduce-scatter and all-gather of a library in which they do not take half as long as a ring.
    Seconds: `base` once, `inside` and `between` nodes per hop. `share` of the bus bandwidth carries data.
    """

    algorithm: str
    protocol: str
    base: float
    inside: float
    between: float
    share: float = 1.0
    source: str = ""


def _nccl(tree_inside, ring_inside):
    names, tree_base, tree_between = ("LL", "LL128", "Simple"), (6.8, 14.0, 8.4), (5.0, 8.5, 14)
    ring_base, ring_between = (6.6, 14.0, 8.4), (2.7, 4.0, 14.0)
    tree = zip(names, tree_base, tree_inside, tree_between, (0.9 / 3.8, 0.9 * 0.915, 0.9))
    ring = zip(names, ring_base, ring_inside, ring_between, (1 / 4, 0.92, 1.0))
    return tuple(
        Way(algorithm, name, *(1e-6 * lat for lat in lats), share, "NCCL 2.27, tuning.cc")
        for algorithm, ways in (("tree", tree), ("ring", ring))
        for name, *lats, share in ways
    )


# NCCL's own table for choosing, src/graph/tuning.cc of version 2.27, without its corrections of bandwidth for medium
# sizes and the network's overhead per step.
NCCL_NVLINK = _nccl((0.6, 1.25, 4.0), (0.6, 1.9, 3.4))
NCCL_PCIE = _nccl((1.0, 1.9, 4.0), (1.0, 2.5, 5.7))
# From the A100 on, NCCL multiplies the latency of a ring over several nodes in protocol Simple by this (before by 1.9).
PLATEAU = 1.4
# The share of a hidden message's time by which it slows down what it hides behind, fitted to two published rows. Its
# kernels take multiprocessors and memory bandwidth, which may be why.
INTERFERENCE = 0.9


@dataclass(frozen=True)
class Group:
    """Ranks of one collective: `size` of them, `per_node` on each node they use."""

    size: int
    per_node: int

    @classmethod
    def of(cls, size: int, stride: int, cluster: Cluster) -> Group:
        """A group of `size` ranks with the given stride; nodes are filled in order."""
        return cls(size, max(1, min(size, cluster.gpus_per_node // stride)))

    @property
    def nodes(self) -> int:
        return -(-self.size // self.per_node)


def all_reduce(num_bytes: float, group: Group, cluster: Cluster) -> Line:
    """The Line of an all-reduce of a tensor of `num_bytes` in `group`; 0 s for one rank."""
    return _quickest("all-reduce", num_bytes, group, cluster, [way for way in cluster.ways if way.algorithm != "half"])


def half(num_bytes: float, group: Group, cluster: Cluster) -> Line:
    """The Line of a reduce-scatter or all-gather of a whole tensor of `num_bytes`, by rings or ways of their own."""
    known = [way for way in cluster.ways if way.algorithm == "half"]
    ways = known or [way for way in cluster.ways if way.algorithm == "ring"]
    return _quickest("half", num_bytes, group, cluster, ways)


def all_to_all(num_bytes: float, group: Group, cluster: Cluster) -> Line:
    """The Line of an all-to-all in which each rank of `group` sends `num_bytes`, an equal part to each rank.

    Messages inside the node and to other nodes use different links, at the same time.
    """
    part, others = num_bytes / group.size, group.size - 1
    near = min(others, group.per_node - 1)
    lines = [
        send(part * number, is_inside, cluster)
        for number, is_inside in ((near, True), (others - near, False))
        if number
    ]
    slowest = max(lines, key=lambda line: line.value, default=Line("", 0.0, "s"))
    formula = f"{in_words(num_bytes, 'bytes')} from each of {group.size} ranks; slowest: {slowest.formula}"
    return Line("all-to-all", slowest.value, "s", formula, slowest.source)


def _quickest(name, num_bytes, group, cluster, ways):
    if group.size == 1:
        return Line(name, 0.0, "s", "one rank")
    bytes_per_s = cluster.inside
    if group.nodes > 1:  # the group's share of its node's network cards
        bytes_per_s = min(bytes_per_s, cluster.between * group.per_node / cluster.gpus_per_node)
    seconds, way = _least({way: _seconds(name, num_bytes, group, bytes_per_s, way) for way in ways})
    nodes = f"{group.nodes} node{'s' * (group.nodes > 1)}"
    formula = f"{in_words(num_bytes, 'bytes')} among {group.size} ranks on {nodes}, {way.algorithm}, {way.protocol}"
    return Line(name, seconds, "s", formula, way.source)


def _least(seconds):
    way = min(seconds, key=seconds.get)
    return seconds[way], way


def _seconds(name, num_bytes, group, bytes_per_s, way):
    n, nodes = group.size, group.nodes
    directions = 2 if name == "all-reduce" else 1
    if way.algorithm == "tree":
        moved, hops = num_bytes * directions, (n / nodes - 1) * way.inside + log2(nodes) * way.between
    else:
        far = nodes - 1
        moved, hops = (n - 1) / n * num_bytes * directions, (n - 1 - far) * way.inside + far * way.between
    latency = way.base + directions * hops
    if name == "all-reduce" and nodes > 1 and (way.algorithm, way.protocol) == ("ring", "Simple"):
        latency *= PLATEAU
    return latency + moved / (bytes_per_s * way.share)


def send(num_bytes: float, is_inside: bool, cluster: Cluster) -> Line:
    """The Line of one rank's message to another, in the node or over this GPU's share of the network cards."""
    bytes_per_s = cluster.inside if is_inside else cluster.between / cluster.gpus_per_node
    seconds, way = _least(
        {
            way: way.base + (way.inside if is_inside else way.between) + num_bytes / (bytes_per_s * way.share)
            for way in cluster.ways
            if way.algorithm == "ring"
        }
    )
    where = "in the node" if is_inside else "to another node"
    return Line("message", seconds, "s", f"{in_words(num_bytes, 'bytes')} {where}, in {way.protocol}", way.source)


def beside(messages_s: float, computing_s: float) -> float:
    """The seconds that messages add to the computing that they hide behind."""
    hidden = min(messages_s, computing_s)
    return messages_s - hidden + INTERFERENCE * hidden
