"""Published speeds of language models: whole tables, with the settings that their sources print."""

import csv
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from .. import Cluster, Method, Plan, State, plan, transformer
from ..methods import schedule_of
from ..presets import LLAMA, NETWORKS
from ..presets import cluster as preset
from .comparison import BOUND, INPUT, PREDICTION, SIBLING, Row

A100, A100_40, H100 = (replace(preset(f"8x{name}"), nodes=None) for name in ("A100-80", "A100-40", "H100"))
# torchtitan's H100 have 96 GB of HBM2e with 2.4 TB/s, and a power limit of 500 W, which nothing here accounts for.
H100_96 = replace(H100, gpu=replace(H100.gpu, name="H100-96", memory=96e9, bandwidth=2.4e12))
JEAN_ZAY = Cluster("A100-80", between=50e9)  # four cards of 100 Gbit/s a node
VTRAIN = Cluster("A100-80", between=100e9)  # fitted: the source does not print it
# Megatron computes a block again to its end and, as of 2021, sent gradients after the backward pass.
MEGATRON: dict[str, Any] = {"precision": "fp16", "overlap": False, "stops_early": False}


def rows() -> Iterator[Row]:
    """All rows, source by source."""
    for source in (
        narayanan, korthikanti, megatron_core, bigscience, mt_nlg, llm_foundry, fms_fsdp, torchtitan, torchtitan_fp8,
        nemo, zhao, vtrain,
    ):  # fmt: skip
        yield from _with_siblings(list(source()))


def _with_siblings(found):
    """Mark predictions for a network and a GPU that something was fitted to."""
    fitted = {(row.plan.network, row.plan.cluster.gpu.name) for row in found if row.kind == INPUT}
    for row in found:
        is_sibling = row.kind == PREDICTION and (row.plan.network, row.plan.cluster.gpu.name) in fitted
        yield replace(row, kind=SIBLING) if is_sibling else row


def _row(source, what, unit, published, said, kind=PREDICTION):
    predicted = {
        "tokens/s a GPU": said.tokens_per_s,
        "s a step": said.step.value,
        "TFLOPS a GPU": said.flops_per_s / 1e12,  # recomputed ones included
        "model TFLOPS a GPU": said.mfu * said.cluster.gpu.peak(said.method.precision) / 1e12,
    }[unit]
    return Row(source, what, unit, published, predicted, kind, plan=said)


def _read(name):
    """The rows of a table beside this file, as dicts; `input` says what was fitted to a row."""
    with open(Path(__file__).with_name(name), encoding="utf-8") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))


def _kind(row):
    return INPUT if row["input"] else PREDICTION


def _numbers(row, *names):
    return [int(row[name]) for name in names]


@cache
def _network(name, **options):
    return NETWORKS[name](**options)


@cache
def _gpt(hidden, layers, heads, sequence=2048, vocabulary=51200):
    return transformer(hidden, layers, heads, sequence, vocabulary)


def narayanan() -> Iterator[Row]:
    """Narayanan and others, 2021, table 1 (part) and table 2: full recomputation, one sequence per micro-batch."""
    heads = {2304: 24, 3072: 32, 6144: 48, 12288: 96, 20480: 128}
    table = [  # B parameters, hidden, layers, tensor, pipeline, GPUs, batch, TFLOPS per GPU
        (1.7, 2304, 24, 1, 1, 32, 512, 137),
        (3.6, 3072, 30, 2, 1, 64, 512, 138),
        (18.4, 6144, 40, 8, 1, 256, 1024, 135),
        (145.6, 12288, 80, 8, 8, 1536, 2304, 148),
        (529.6, 20480, 105, 8, 35, 2520, 2520, 163),
        *((175, 12288, 96, 8, 12, num_gpus, 1536, found) for num_gpus, found in ((384, 153), (768, 149), (1536, 141))),
    ]
    for billions, hidden, layers, tensor, pipeline, num_gpus, batch, found in table:
        method = Method(num_gpus // (tensor * pipeline), tensor, pipeline, checkpointing="full", **MEGATRON)
        said = plan(_gpt(hidden, layers, heads[hidden]), A100, method, batch)
        kind = INPUT if (billions, num_gpus) in ((18.4, 256), (175, 384)) else PREDICTION
        what = f"{billions} B on {num_gpus} GPUs"
        yield _row("Narayanan and others, 2021", what, "TFLOPS a GPU", found, said, kind)


def korthikanti() -> Iterator[Row]:
    """Korthikanti and others, 2022, table 5 (part): recomputed in full, or selectively with a divided sequence."""
    table = [  # B parameters, hidden, layers, heads, stages, chunks, batch, micro-batch, s full, s selective
        (22, 6144, 48, 64, 1, 1, 4, 4, 1.42, 1.10),
        (175, 12288, 96, 96, 8, 3, 64, 1, 18.13, 13.75),
    ]
    for billions, hidden, layers, heads, pipeline, chunks, batch, micro_batch, full, selective in table:
        for checkpointing, found in (("full", full), ("selective", selective)):
            is_divided = checkpointing == "selective"
            method = Method(
                1, 8, pipeline, checkpointing=checkpointing, sequence_parallel=is_divided, micro_batch=micro_batch,
                schedule=schedule_of(chunks), chunks=chunks, **MEGATRON,
            )  # fmt: skip
            said = plan(_gpt(hidden, layers, heads), A100, method, batch)
            yield _row(
                "Korthikanti and others, 2022", f"{billions} B, {checkpointing} recomputation", "s a step", found, said
            )


def megatron_core() -> Iterator[Row]:
    """Megatron-LM's README of July 2024, table of models: everything overlapped, 4,096 tokens, vocabulary of 131,072.

    It does not print micro-batch and chunks. Assumed are one sequence, or as many as fit without a pipeline, and two
    chunks.
    """
    table = [  # B parameters, heads, hidden, layers, tensor, pipeline, GPUs, batch, TFLOPS per GPU
        (1.7, 16, 2048, 24, 1, 1, 48, 192, 408.8),
        (7.1, 32, 4096, 30, 2, 1, 96, 192, 465.9),
        (16, 48, 6144, 32, 4, 1, 192, 192, 489.1),
        (32, 56, 7168, 48, 8, 1, 384, 192, 459.6),
        (70, 64, 8192, 84, 8, 2, 768, 384, 419.7),
        (119, 80, 10240, 92, 8, 4, 1536, 768, 420.5),
        (177, 96, 12288, 96, 8, 6, 2304, 1152, 432.8),
        (314, 128, 16384, 96, 8, 8, 3072, 1536, 474.4),
        (462, 144, 18432, 112, 8, 16, 6144, 3072, 459.9),
    ]
    for billions, heads, hidden, layers, tensor, pipeline, num_gpus, batch, found in table:
        chunks = 2 if pipeline > 1 and layers % (2 * pipeline) == 0 else 1
        micro_batch = {1: 4, 2: 2}.get(tensor, 1)
        method = Method(
            48, tensor, pipeline, shard="optimizer", sequence_parallel=tensor > 1, micro_batch=micro_batch,
            schedule=schedule_of(chunks), chunks=chunks, tensor_overlap=True,
            pipeline_overlap=chunks > 1,
        )  # fmt: skip
        said = plan(transformer(hidden, layers, heads, 4096, 131072, fused_attention=True), H100, method, batch)
        yield _row("Megatron-Core", f"{billions} B on {num_gpus} GPUs", "model TFLOPS a GPU", found, said)


def bigscience() -> Iterator[Row]:
    """BigScience before its 176 B model: Megatron-DeepSpeed, ZeRO-1, full recomputation, vocabulary of 250,000."""
    for row in _read("bigscience.csv"):
        hidden, layers, heads = _numbers(row, "hidden", "layers", "heads")
        data, tensor, pipeline, micro_batch = _numbers(row, "data", "tensor", "pipeline", "micro_batch")
        method = Method(
            data, tensor, pipeline, shard="optimizer", checkpointing="full", micro_batch=micro_batch,
            divided_messages=False, **MEGATRON,
        )  # fmt: skip
        said = plan(_gpt(hidden, layers, heads, vocabulary=250112), JEAN_ZAY, method, int(row["batch"]))
        what = f"{hidden} wide, {layers} blocks, {heads} heads, {data} × {tensor} × {pipeline} × {micro_batch}"
        yield _row("BigScience, 176 B prequel", what, "s a step", float(row["seconds"]), said, _kind(row))


def mt_nlg() -> Iterator[Row]:
    """Smith and others, 2022 (arXiv 2201.11990), section 2.4: DeepSpeed's pipeline, batch 1,920."""
    for num_gpus, found in ((2240, 60.1), (2800, 50.2), (3360, 44.4)):
        method = Method(num_gpus // 280, 8, 35, checkpointing="full", divided_messages=False, **MEGATRON)
        said = plan(_gpt(20480, 105, 128), A100, method, 1920)
        yield _row("MT-NLG, 530 B", f"530 B on {num_gpus} GPUs", "s a step", found, said)


def llm_foundry() -> Iterator[Row]:
    """MosaicML's MPT models under FSDP, run operation by operation with flash attention."""
    clusters = {"A100-40": A100_40, "A100-80": A100, "H100": H100}
    for row in _read("llm_foundry.csv"):
        sequence, num_gpus, micro_batch, accumulated = _numbers(row, "sequence", "gpus", "micro_batch", "accumulated")
        method = Method(
            num_gpus, shard=row["sharded"], checkpointing=row["recomputed"], micro_batch=micro_batch,
            precision=row["precision"],
        )  # fmt: skip
        said = plan(
            _network(f"mpt-{row['model']}", sequence=sequence),
            clusters[row["gpu"]],
            method,
            num_gpus * micro_batch * accumulated,
        )
        in_fp8 = ", fp8" if row["precision"] == "fp8" else ""
        what = f"{row['model']}, {sequence:,} tokens × {micro_batch}, {num_gpus} {row['gpu']}{in_fp8}"
        yield _row("llm-foundry", what, "tokens/s a GPU", float(row["tokens_per_s"]), said, _kind(row))


def fms_fsdp() -> Iterator[Row]:
    """IBM's Llama 2 and a 34 B model on 128 A100, 4,096 tokens: sharded over a node, or over all GPUs."""
    table = [  # width, blocks, heads, heads of keys, feed-forward, replicas, recomputation, micro-batch, tokens/s a GPU
        ("7 B", 4096, 32, 32, 32, 11008, 16, "none", 2, 3760),
        ("13 B", 5120, 40, 40, 40, 13824, 16, "none", 1, 1700),
        ("34 B", 8192, 48, 64, 8, 22016, 1, "full", 8, 772),
        ("70 B", 8192, 80, 64, 8, 28672, 1, "full", 6, 380),
    ]
    for what, hidden, layers, heads, kv_heads, width, replicas, checkpointing, micro_batch, found in table:
        network = transformer(
            hidden, layers, heads, 4096, 32000, feed_forward=width, kv_heads=kv_heads, fused=False, **LLAMA
        )
        method = Method(128, shard="full", replicas=replicas, checkpointing=checkpointing, micro_batch=micro_batch)
        said = plan(network, A100, method, 128 * micro_batch)
        yield _row("fms-fsdp", f"{what} on 128 GPUs", "tokens/s a GPU", found, said)


# torchtitan keeps parameters and gradients in fp32, and gathers and sends them in bf16.
FP32_MASTERS = State(4, 4, 8, 2)


# Llama 3 8B, sharded: ranks, and tokens/s a GPU as written, compiled, and compiled in fp8.
SHARDED = (8, 5762.0, 6667.0, 8532.0), (128, 5605.0, 6514.0, 8380.0)
# With 8 tensor-parallel ranks, compiled: billions of parameters, data-parallel ranks, micro-batch, recomputation.
WITH_TENSOR = (70, 32, 16, "full"), (8, 8, 12, "operations")


def torchtitan() -> Iterator[Row]:
    """Torchtitan's benchmarks of December 2024 and June 2025, all rows in bf16."""
    for num_gpus, eager, compiled, _ in SHARDED:
        for what, found, fused in (("as written", eager, False), ("compiled", compiled, True)):
            said = _sharded(num_gpus, fused=fused)
            yield _row("torchtitan", f"Llama 3 8B × {num_gpus}, {what}", "tokens/s a GPU", found, said)
    for job, found in zip(WITH_TENSOR, (597.3, 4378.0)):
        yield _row("torchtitan", _of_tensor(job), "tokens/s a GPU", found, _with_tensor(*job))


def torchtitan_fp8() -> Iterator[Row]:
    """Torchtitan's rows in fp8, scaled by tensor: sharded, with tensor parallelism, and with context parallelism."""
    for num_gpus, _, _, found in SHARDED:
        said = _sharded(num_gpus, precision="fp8")
        yield _row("torchtitan, fp8", f"Llama 3 8B × {num_gpus}", "tokens/s a GPU", found, said)
    for job, plain, hidden in zip(WITH_TENSOR, (809.8, 5078.1), (942.4, 5570.1)):
        for is_hidden, found in ((False, plain), (True, hidden)):
            what = f"{_of_tensor(job)}{', overlapped' if is_hidden else ''}"
            said = _with_tensor(*job, precision="fp8", tensor_overlap=is_hidden)
            yield _row("torchtitan, fp8", what, "tokens/s a GPU", found, said)
    for context, found, _ in WITH_CONTEXT:
        what = f"Llama 3 8B × 8, context {context}, {32768 * context:,} tokens"
        yield _row("torchtitan, fp8", what, "tokens/s a GPU", found, _with_context(context))


def _sharded(num_gpus, fused=True, precision="bf16"):
    method = Method(
        num_gpus, shard="full", micro_batch=2, checkpointing="operations", state=FP32_MASTERS, precision=precision
    )
    return plan(_network("llama-3-8b", fused=fused), H100_96, method, 2 * num_gpus)


def _of_tensor(job):
    billions, data, *_ = job
    return f"Llama 3 {billions}B × {8 * data}, 8 × tensor"


def _with_tensor(billions, data, micro_batch, checkpointing, **options):
    method = Method(
        data, 8, shard="full", micro_batch=micro_batch, checkpointing=checkpointing, sequence_parallel=True,
        state=FP32_MASTERS, **options,
    )  # fmt: skip
    return plan(_network(f"llama-3-{billions}b", fused=True), H100_96, method, data * micro_batch)


WITH_CONTEXT = (1, 3890.0, 83.9), (2, 2540.0, 84.2), (4, 1071.0, 84.0), (8, 548.0, 84.5)  # ranks, tokens/s a GPU, GiB


def _with_context(context):
    method = Method(
        8 // context, context=context, checkpointing="full", state=FP32_MASTERS, precision="fp8", shard="full"
    )
    return plan(_network("llama-3-8b", sequence=32768 * context, fused=True), H100_96, method, 8 // context)


def nemo() -> Iterator[Row]:
    """NVIDIA's NeMo and Megatron-Bridge, dense models in fp8 on H100, B200 and GB200, with everything overlapped.

    The tables do not print attention's kernel (taken as native), sequence parallelism (with tensor parallelism),
    recomputation and offloading (none), and how many GPUs of a rack of GB200 were used (64). By the planner's count of
    memory, nine of the 32 jobs do not fit, though they ran.
    """
    for row in _read("nemo.csv"):
        num_gpus, batch, micro_batch, sequence = _numbers(row, "gpus", "batch", "micro_batch", "sequence")
        tensor, pipeline, context, chunks = _numbers(row, "tensor", "pipeline", "context", "chunks")
        method = Method(
            num_gpus // (tensor * pipeline * context), tensor, pipeline, context=context, precision="fp8",
            shard="full" if row["fsdp"] == "1" else "optimizer", sequence_parallel=tensor > 1, micro_batch=micro_batch,
            schedule=schedule_of(chunks), chunks=chunks, buckets=False, native_attention=True,
            tensor_overlap=tensor > 1, pipeline_overlap=pipeline > 1,
        )  # fmt: skip
        whole = preset(f"{num_gpus}x{row['gpu']}")
        said = plan(_of_nemo(row["model"], sequence), whole, method, batch)
        what = f"{row['model']} on {num_gpus} GPUs"
        source, found = f"NeMo {row['release']}, {row['gpu']}", float(row["tokens_per_s"])
        yield _row(source, what, "tokens/s a GPU", found, said, _kind(row))


_OF_NEMO = {  # hidden, layers, heads, heads of keys and values
    "gpt-5b": (4096, 24, 32, 32), "gpt-20b": (6144, 44, 48, 48), "gpt-175b": (12288, 96, 96, 96),
    "nemotron-8b": (4096, 32, 32, 32), "nemotron-15b": (6144, 32, 48, 8), "nemotron-22b": (6144, 40, 48, 48),
    "nemotron-340b": (18432, 96, 96, 8),
}  # fmt: skip


def _of_nemo(name, sequence):
    if name not in _OF_NEMO:
        return _network(name, sequence=sequence, fused=True)
    hidden, layers, heads, kv_heads = _OF_NEMO[name]
    is_gpt = name.startswith("gpt")
    return transformer(
        hidden, layers, heads, sequence, 51200 if is_gpt else 256000, kv_heads=kv_heads, biases=is_gpt,
        positions=is_gpt, tied=is_gpt, dropout=False, fused_attention=True,
    )  # fmt: skip


def zhao() -> Iterator[Row]:
    """Zhao and others, 2023: 175 B on 128 and 512 GPUs, published as "more than"."""
    cluster, network = Cluster("A100-80", between=250e9), transformer(12288, 96, 96, 2048, 50257)
    for num_gpus in (128, 512):
        for micro_batch, found in ((1, 173), (2, 186)):
            method = Method(num_gpus, shard="full", checkpointing="full", micro_batch=micro_batch)
            said = plan(network, cluster, method, num_gpus * micro_batch)
            what = f"175 B × {num_gpus}, batch {micro_batch}"
            yield _row("Zhao and others, 2023", what, "TFLOPS a GPU", found, said, BOUND)


def vtrain() -> Iterator[Row]:
    """VTrain's measurements of Megatron on A100, a sample: small networks on one node, large ones on several."""
    for row in _read("vtrain.csv"):
        hidden, layers, heads, sequence = _numbers(row, "hidden", "layers", "heads", "sequence")
        data, tensor, pipeline, micro_batch = _numbers(row, "data", "tensor", "pipeline", "micro_batch")
        said = plan_of_vtrain(hidden, layers, heads, sequence, data, tensor, pipeline, micro_batch, int(row["batch"]))
        source = "vTrain, one node" if int(row["gpus"]) <= 8 else "vTrain, several nodes"
        what = f"{hidden} wide, {layers} blocks, {data} × {tensor} × {pipeline} × {micro_batch}, batch {row['batch']}"
        yield _row(source, what, "s a step", float(row["milliseconds"]) / 1e3, said, _kind(row))


def plan_of_vtrain(
    hidden: int, layers: int, heads: int, sequence: int, data: int, tensor: int, pipeline: int, micro_batch: int,
    batch: int,
) -> Plan:  # fmt: skip
    """The Plan of one of vTrain's measurements: Megatron, with full recomputation."""
    method = Method(data, tensor, pipeline, checkpointing="full", micro_batch=micro_batch, **MEGATRON)
    return plan(_gpt(hidden, layers, heads, sequence), VTRAIN, method, batch)


def memories() -> Iterator[Row]:
    """GiB that the allocator reserved for Llama 3 8B under torchtitan, as written, compiled, in fp8, with context."""
    for num_gpus, eager, compiled, in_fp8 in ((8, 82.4, 77.0, 76.8), (128, 67.0, 62.0, 61.8)):
        for what, found, fused in (("as written", eager, False), ("compiled", compiled, True), ("fp8", in_fp8, True)):
            said = _sharded(num_gpus, fused, "fp8" if what == "fp8" else "bf16")
            yield Row("torchtitan", f"Llama 3 8B × {num_gpus}, {what}", "GiB", found, said.reserved / 2**30, plan=said)
    for context, _, found in WITH_CONTEXT:
        said = _with_context(context)
        yield Row("torchtitan", f"Llama 3 8B × 8, context {context}", "GiB", found, said.reserved / 2**30, plan=said)
