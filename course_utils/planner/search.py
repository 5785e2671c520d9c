"""The fastest methods for a job: all splits, ways to shard and to recompute, and micro-batches that fit."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from . import FREE, Plan, plan
from .clusters import Cluster
from .methods import Method, schedule_of
from .networks import Network


@dataclass(frozen=True)
class Found:
    """A Plan, and what limits its speed: the largest share of the step that is neither product nor attention."""

    plan: Plan
    limit: str
    share: float


def best(network: Network, cluster: Cluster, batch: int, num_gpus: int | None = None, count: int = 10) -> list[Found]:
    """The `count` fastest plans on `num_gpus` (by default all of the cluster's) that leave a tenth of the memory free.

    Raises ValueError if no method fits, or none divides the batch.
    """
    if num_gpus is None:
        num_gpus = cluster.gpus_per_node * (cluster.nodes or 1)
    fitting, least = [], float("inf")
    for methods in _candidates(network, cluster, batch, num_gpus):
        for method in methods:  # of growing micro-batches
            try:
                found = plan(network, cluster, method, batch)
            except ValueError:
                break
            least = min(least, found.peak.value)
            if not found.fits:
                break
            fitting.append(found)
    if not fitting:
        needs = (
            f"the least that a method needs is {least / 1e9:,.0f} GB a GPU" if least < float("inf") else "none divides"
        )
        raise ValueError(
            f"no method trains this on {num_gpus} {cluster.gpu.name} with a batch of {batch}: {needs}, and "
            f"{(1 - FREE) * cluster.gpu.memory / 1e9:,.0f} GB are there; take more GPUs, or another batch"
        )
    fitting.sort(key=lambda found: found.step.value)
    return [Found(found, *_limit(found)) for found in fitting[:count]]


def _divisors(number):
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _candidates(network: Network, cluster: Cluster, batch: int, num_gpus: int) -> Iterator[list[Method]]:
    """Lists of methods that differ in the micro-batch alone, the smallest first."""
    recomputed = ["none", "operations", "full"]
    if any(layer.core.forward for layer in network.layers):  # fused attention recomputes its scores in any case
        recomputed.insert(1, "selective")
    for split in _splits(network, cluster, batch, num_gpus):
        sizes = [size for size in _divisors(batch // split["data"]) if size & (size - 1) == 0]
        is_divided = split["tensor"] > 1 and network.tokens // split["context"] % split["tensor"] == 0
        for shard, replicas in _shardings(split, cluster):
            for how in recomputed:
                options = {"shard": shard, "replicas": replicas, "checkpointing": how, "sequence_parallel": is_divided}
                yield [Method(micro_batch=size, **split, **options) for size in sizes]


def _splits(network, cluster, batch, num_gpus):
    """Methods' sizes of all splits: over the ranks of a node at most for tensors, equal numbers of blocks a stage."""
    num_blocks = sum(layer.is_block for layer in network.layers)
    says_how = any(layer.all_reduces for layer in network.layers)  # one that was counted does not
    for tensor in _divisors(num_gpus) if says_how else [1]:
        if tensor > cluster.gpus_per_node or (network.heads and network.heads % tensor):
            continue
        for pipeline in _divisors(num_gpus // tensor):
            if num_blocks % pipeline:
                continue
            copies = num_gpus // tensor // pipeline
            for context in _contexts(network, copies):
                if batch % (copies // context):
                    continue
                split = {"data": copies // context, "context": context, "tensor": tensor, "pipeline": pipeline}
                all_chunks = (1, 2) if pipeline > 1 and num_blocks % (2 * pipeline) == 0 else (1,)
                for chunks, expert in product(all_chunks, _experts(network, copies * tensor)):
                    yield split | {"expert": expert, "chunks": chunks, "schedule": schedule_of(chunks)}


def _contexts(network, copies):
    """The numbers of ranks that may share a sequence: several only if each has 8,192 tokens or more."""
    return [n for n in _divisors(copies) if n == 1 or network.heads and network.tokens // n >= 8192]


def _experts(network, num_ranks):
    """The numbers of a stage's ranks over which the experts may be divided."""
    return [n for n in _divisors(network.experts or 1) if num_ranks % n == 0]


def _shardings(split, cluster):
    """(shard, replicas): whole on each rank, the optimizer's state divided, or everything, over all or over a node."""
    copies = split["data"] * split["context"]
    if copies == 1:
        return [("none", 1)]
    found = [("optimizer", 1)]
    if split["pipeline"] == 1:  # else every micro-batch would gather the stage again
        found.append(("full", 1))
        in_node = cluster.gpus_per_node // split["tensor"]
        if copies > in_node > 1 and copies % in_node == 0:
            found.append(("full", copies // in_node))
    return found


_GROUPS = {
    "messages": "messages", "bubble": "bubble", "again": "recomputation", "waiting for Python": "Python",
    "update": "update", "the rest": "bytes",
}  # fmt: skip


def _limit(found: Plan) -> tuple[str, float]:
    spent = dict.fromkeys(_GROUPS.values(), 0.0)
    for line, seconds in found.step.leaves():
        group = next((group for words, group in _GROUPS.items() if words in line.name), None)
        if group:
            spent[group] += seconds
    most = max(spent, key=lambda group: spent[group])
    return most, spent[most] / found.step.value
