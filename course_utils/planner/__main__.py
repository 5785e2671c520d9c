"""Plan a training job from the command line: memory, step and price of the fastest methods, or of one.

python -m course_utils.planner --model llama-3-8b --gpus 64xA100-80 --batch 1024
python -m course_utils.planner --model llama-3-8b --gpus 8xH100 --batch 16 --method shard=full,micro_batch=2
python -m course_utils.planner --config config.json --sequence 4096 --gpus 8xH100 --batch 64
"""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

from . import Cluster, Method, Network, Plan, plan, presets
from .published import seen
from .search import best

_COLUMNS = (
    "data context tensor expert pipeline chunks shard replicas recomputation micro-batch seconds {}/s/GPU MFU GB limit"
)
_LEGEND = """
Seconds of a step; GB on the GPU that holds most; limit: what takes most of the step besides products and attention.
data × context × tensor × pipeline GPUs; chunks of each in an interleaved pipeline; replicas of a sharded model.
shard: what each GPU has a part of: nothing (none: DDP), the optimizer's state (ZeRO-1), the gradients, too (ZeRO-2), or
the parameters, too (full: ZeRO-3, FSDP). DDP is planned only if you ask for it (--method shard=none): ZeRO-1 sends as
much, and holds less. recomputation: what the backward pass computes again, to hold less: nothing,
attention's scores (selective), all but every second product (operations: torch's selective checkpointing), or whole
blocks (full)."""


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, plan, and print a table or JSON; a wrong argument ends with one sentence."""
    asked = _parser().parse_args(arguments)
    try:
        make, cluster = _maker(asked), _cluster(asked)
    except ValueError as error:
        sys.exit(f"planner: {error}")
    made = make()  # a function of one's own may raise what it likes
    try:
        network = _as_network(made)
    except ValueError as error:
        sys.exit(f"planner: --model {asked.model}: {error}")
    if not isinstance(network, Network):
        sys.exit(
            f"planner: --model {asked.model} returned a {type(network).__name__}: let it return a module and a batch "
            "of inputs, as in `return model, torch.zeros(2, 20)`, or a planner.Network"
        )
    try:
        if asked.method is not None:
            said = plan(network, cluster, _method(asked.method, cluster), asked.batch)
            found = [(said, "" if said.fits else "does not fit")]
        else:
            found = [(each.plan, f"{each.limit} {each.share:.0%}") for each in best(network, cluster, asked.batch)]
    except (ValueError, TypeError) as error:
        sys.exit(f"planner: {error}")
    if asked.json:
        print(json.dumps([_as_dict(each) for each, _ in found], indent=2))
        return
    print(_title(asked, network, cluster, found[0][0].method))
    columns = _COLUMNS.format("tokens" if network.tokens > 1 else "samples").split()
    _print_table([columns, *([str(cell) for cell in _row(each, limit)] for each, limit in found)])
    print(_LEGEND)
    fastest, _ = found[0]
    print(f"\n{fastest if asked.method is not None or asked.lines else _price(fastest)}\n\n{seen(fastest)}")


def _title(asked, network: Network, cluster: Cluster, method: Method) -> str:
    samples = f"sequences of {network.tokens:,} tokens" if network.tokens > 1 else "samples"
    title = f"{_parameters(network)}, {asked.gpus}, {asked.batch:,} {samples} a step, in {method.precision}\n"
    there = cluster.gpus_per_node * (cluster.nodes or 1)
    if method.world_size < there:
        title += f"{there - method.world_size} of these {there} GPUs are idle: this method takes {method.world_size}.\n"
    return title


def _parser():
    parser = argparse.ArgumentParser(prog="python -m course_utils.planner", description=__doc__.splitlines()[0])
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument(
        "--model",
        help=f"{', '.join(presets.NETWORKS)}; or module:function of your own, which returns a module "
        "and a batch of inputs",
    )
    model.add_argument("--config", metavar="FILE", help="a Hugging Face model configuration, config.json")
    parser.add_argument("--sequence", type=int, metavar="TOKENS", help="tokens of a sample, if not the model's usual")
    parser.add_argument("--compiled", action="store_true", help="norms and activations are fused, as a compiler's are")
    parser.add_argument("--gpus", required=True, metavar="64xA100-80", help="number and kind of GPUs, eight a node")
    parser.add_argument("--between", type=float, metavar="GBIT", help="Gbit/s of all network cards of a node")
    parser.add_argument("--dollars", type=float, default=0.0, metavar="PRICE", help="of a GPU and hour")
    parser.add_argument("--batch", type=int, required=True, help="sequences a step, over all GPUs")
    parser.add_argument(
        "--method", metavar="data=8,tensor=2,…", help="plan this method instead of searching the fastest"
    )
    parser.add_argument("--lines", action="store_true", help="print every term of the fastest plan")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _as_network(made: object) -> object:
    """The Network of a module and its inputs; anything else as it is."""
    if not (isinstance(made, tuple) and len(made) > 1):
        return made
    from .counting import count  # only here is torch needed

    return count(*made)


def _parameters(network: Network) -> str:
    size, unit = (1e9, "billion") if network.parameters >= 1e9 else (1e6, "million")
    number = network.parameters / size
    return f"{number:,.3g} {unit} parameters" if number < 1000 else f"{number:,.0f} {unit} parameters"


def _maker(asked) -> Callable[[], object]:
    options = {"fused": asked.compiled} | ({"sequence": asked.sequence} if asked.sequence else {})
    if asked.config:
        network = presets.from_config(asked.config, **options)
        return lambda: network
    if asked.model in presets.NETWORKS:
        return partial(presets.NETWORKS[asked.model], **options)
    module, separator, name = asked.model.partition(":")
    if not separator:
        raise ValueError(
            f"--model {asked.model} is not known: give {', '.join(presets.NETWORKS)}, or module:function of your own"
        )
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--model {asked.model}: {error}") from error


def _cluster(asked) -> Cluster:
    cluster = replace(presets.cluster(asked.gpus), dollars_per_hour=asked.dollars)
    return replace(cluster, between=asked.between * 1e9 / 8) if asked.between is not None else cluster


def _method(text: str, cluster: Cluster) -> Method:
    """The Method that "tensor=2,shard=full" names; `data` is what the cluster's GPUs leave."""
    kinds = {field.name: field.type for field in fields(Method)}
    given: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if kinds.get(name) is bool:
            given[name] = value.lower() in ("", "true", "yes", "1")
        else:
            given[name] = int(value) if value.isdecimal() else value
    rest = given.get("tensor", 1) * given.get("pipeline", 1) * given.get("context", 1)
    num_gpus = cluster.gpus_per_node * (cluster.nodes or 1)
    return Method(**({"data": max(1, num_gpus // rest)} | given))


def _row(found: Plan, limit: str):
    method = found.method
    return [
        method.data, method.context, method.tensor, method.expert, method.pipeline, method.chunks, method.shard,
        method.replicas, method.checkpointing, method.micro_batch, f"{found.step.value:.3g}",
        f"{found.tokens_per_s:,.0f}", f"{found.mfu:.0%}", _gigabytes(found), limit,
    ]  # fmt: skip


def _gigabytes(found: Plan) -> str:
    size = found.peak.value / 1e9
    return f"{size:.0f}" if size >= 10 else f"{size:.2g}"


def _print_table(lines):
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        print("  ".join(f"{cell:>{width}s}" for cell, width in zip(line, widths)).rstrip())


def _price(found: Plan) -> str:
    samples, what = 1e9 / found.network.tokens, "tokens" if found.network.tokens > 1 else "samples"
    price = f", {found.dollars(samples):,.0f} dollars" if found.cluster.dollars_per_hour else ""
    return f"The first: {found.gpu_hours(samples):,.0f} GPU hours for a billion {what}{price}."


def _as_dict(found: Plan):
    return {
        "method": found.method.settings(),
        "step_s": found.step.value, "tokens_per_s_a_gpu": found.tokens_per_s, "mfu": found.mfu,
        "peak_bytes": found.peak.value, "fits": found.fits,
        "step": {line.name: line.value for line in found.step.parts},
        "memory": {line.name: line.value for line in found.memory.parts},
    }  # fmt: skip


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python's end flushes to it again
