"""Published speeds and memory of Megatron, alone and with DeepSpeed."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .. import Cluster, Method, Plan, State, plan, transformer
from ..methods import schedule_of
from .comparison import PREDICTION, Row
from .tables import A100, H100, compared, gpt, kind_of, numbers, read

JEAN_ZAY = Cluster("A100-80", between=50e9)  # four cards of 100 Gbit/s a node
VTRAIN = Cluster("A100-80", between=100e9)  # fitted: the source does not print it
# Megatron computes a block again to its end and, as of 2021, sent gradients after the backward pass.
MEGATRON: dict[str, Any] = {"precision": "fp16", "overlap": False, "stops_early": False}
ZERO_3 = (
    "The authors blame messages between nodes, which the planner hides behind computing, as FSDP does: with FSDP, a "
    "model of the same size ran at more than 173 and 186 TFLOPS with one and two sequences a rank (Zhao and others, "
    "2023)."
)


def narayanan() -> Iterator[Row]:
    """Narayanan and others, 2021, tables 1 and 2: full recomputation, interleaved as in the authors' scripts."""
    for row in read("narayanan.csv"):
        if row["table"] != "ZeRO-3":
            chunks = int(row["chunks"])
            options = MEGATRON | {"overlap": row["overlap"] == "1", "schedule": schedule_of(chunks), "chunks": chunks}
            yield _of_narayanan("Narayanan and others, 2021", row, options, kind_of(row))


def zero_3() -> Iterator[Row]:
    """Narayanan and others, 2021, the part of table 2 with ZeRO-3 in place of tensor and pipeline parallelism."""
    for row in read("narayanan.csv"):
        if row["table"] == "ZeRO-3":
            options = MEGATRON | {"overlap": True, "shard": "full"}
            yield _of_narayanan("Narayanan and others, ZeRO-3", row, options, reason=ZERO_3)


def _of_narayanan(source, row, options, kind=PREDICTION, reason=""):
    hidden, layers, heads = numbers(row, "hidden", "layers", "heads")
    data, tensor, pipeline, micro_batch = numbers(row, "data", "tensor", "pipeline", "micro_batch")
    method = Method(data, tensor, pipeline, checkpointing="full", micro_batch=micro_batch, **options)
    said = plan(gpt(hidden, layers, heads), A100, method, int(row["batch"]))
    what = f"{said.network.parameters / 1e9:.1f} B on {method.world_size} GPUs"
    return compared(source, what, "TFLOPS a GPU", float(row["teraflops"]), said, kind, reason)


# Korthikanti and others, 2022 (arXiv 2205.05198), tables 3 and 5, keyed by B parameters, hidden, layers, heads, stages,
# chunks, micro-batch, batch: seconds a step, recomputed in full, and selectively with a divided sequence.
KORTHIKANTI: dict[tuple[int, ...], tuple[float, float]] = {
    (22, 6144, 48, 64, 1, 1, 4, 4): (1.42, 1.10),
    (175, 12288, 96, 96, 8, 3, 1, 64): (18.13, 13.75),
    (530, 20480, 105, 128, 35, 3, 1, 280): (49.05, 37.83),
    (1000, 25600, 128, 160, 64, 1, 1, 512): (94.42, 71.49),
}


def korthikanti() -> Iterator[Row]:
    """Korthikanti and others, 2022, table 5, and 530 B in eight replicas: 39.15 s (section 6.3), 42.1 % (abstract)."""
    source = "Korthikanti and others, 2022"
    for job, seconds in KORTHIKANTI.items():
        for checkpointing, found in zip(("full", "selective"), seconds):
            said = of_korthikanti(job, checkpointing, checkpointing == "selective")
            yield compared(source, f"{job[0]} B, {checkpointing} recomputation", "s a step", found, said)
    full, selective = (
        of_korthikanti(list(KORTHIKANTI)[2], how, how == "selective", 8) for how in ("full", "selective")
    )
    what = "530 B on 2240 GPUs, {} recomputation"
    yield compared(source, what.format("full"), "model TFLOPS a GPU", 0.421 * 312, full)
    yield compared(source, what.format("selective"), "s a step", 39.15, selective)


def of_korthikanti(
    job: tuple[int, ...], checkpointing: str, is_divided: bool, replicas: int = 1, state: State | None = None
) -> Plan:
    """The Plan of a job of KORTHIKANTI; with `replicas`, each has the job's batch."""
    _, hidden, layers, heads, pipeline, chunks, micro_batch, batch = job
    method = Method(
        replicas, 8, pipeline, checkpointing=checkpointing, sequence_parallel=is_divided, micro_batch=micro_batch,
        schedule=schedule_of(chunks), chunks=chunks, state=state, **MEGATRON,
    )  # fmt: skip
    return plan(gpt(hidden, layers, heads), A100, method, replicas * batch)


def layers() -> Iterator[Row]:
    """Korthikanti and others, 2022, table 4: forward and backward pass of one block of the 22 B model."""
    for checkpointing, is_divided, found in (
        ("none", False, 19.6), ("none", True, 19.0), ("full", False, 27.2), ("selective", False, 20.9),
        ("selective", True, 20.3),
    ):  # fmt: skip
        one, two = (
            of_korthikanti((22, 6144, number, 64, 1, 1, 4, 4), checkpointing, is_divided).step["a micro-batch"].value
            for number in (1, 2)
        )
        what = f"a block of 22 B, recomputed: {checkpointing}{', sequence divided' if is_divided else ''}"
        yield Row("Korthikanti and others, 2022", what, "ms", found, 1e3 * (two - one))


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
        yield compared("Megatron-Core", f"{billions} B on {num_gpus} GPUs", "model TFLOPS a GPU", found, said)


def bigscience() -> Iterator[Row]:
    """BigScience before its 176 B model: Megatron-DeepSpeed, ZeRO-1, full recomputation, vocabulary of 250,000.

    Each time is of one step, the second. Jobs of 200 B on 320 GPUs hung unless CUDA launched every kernel only after
    the one before had ended (CUDA_LAUNCH_BLOCKING=1); the planner does not account for that.
    """
    for row in read("bigscience.csv"):
        if row["seconds"]:
            said = of_bigscience(row)
            yield compared(
                "BigScience, 176 B prequel", _topology(row), "s a step", float(row["seconds"]), said, kind_of(row)
            )


def of_bigscience(row: dict[str, str]) -> Plan:
    """The Plan of a row of BigScience's tables, in fp16."""
    hidden, layers, heads = numbers(row, "hidden", "layers", "heads")
    data, tensor, pipeline, micro_batch = numbers(row, "data", "tensor", "pipeline", "micro_batch")
    method = Method(
        data, tensor, pipeline, shard="optimizer", checkpointing="full", micro_batch=micro_batch,
        divided_messages=False, **MEGATRON,
    )  # fmt: skip
    return plan(gpt(hidden, layers, heads, vocabulary=250112), JEAN_ZAY, method, int(row["batch"]))


def _topology(row):
    parts = " × ".join(row[name] for name in ("data", "tensor", "pipeline", "micro_batch"))
    return f"{row['hidden']} wide, {row['layers']} blocks, {row['heads']} heads, {parts}"


# nvidia-smi counts what CUDA loads too: 1,573 MiB on an A100-40, by the same source.
CUDA = 1573 * 2**20
# From February 28 on BigScience added up gradients in fp32, beside those in bf16: "4bytes x params".
FP32_SUMS = State(2, 6, 12, 2)


def bigscience_memories() -> Iterator[Row]:
    """GB that nvidia-smi showed during BigScience's jobs, on the nodes that hold the embedding."""
    for row in read("bigscience.csv"):
        if row["gigabytes"] not in ("", "OOM"):
            said = with_sums(row, of_bigscience(row))
            predicted = (said.reserved + CUDA) / 2**30
            yield Row("BigScience", _topology(row), "GiB", float(row["gigabytes"]), predicted, plan=said)


def out_of_memory() -> Iterator[Plan]:
    """The Plans of the jobs for which BigScience's 80 GB were too little."""
    for row in read("bigscience.csv"):
        if row["gigabytes"] == "OOM":
            yield with_sums(row, of_bigscience(row))


def with_sums(row: dict[str, str], said: Plan) -> Plan:
    """The Plan with the bytes per parameter that BigScience's job held on that day."""
    if row["day"] < "02-28":
        return said
    return plan(said.network, said.cluster, replace(said.method, state=FP32_SUMS), said.batch)


def mt_nlg() -> Iterator[Row]:
    """Smith and others, 2022 (arXiv 2201.11990), section 2.4: DeepSpeed's pipeline, batch 1,920.

    What the planner lacks is eight to nine seconds a step, whatever the number of micro-batches.
    """
    for num_gpus, found in ((2240, 60.1), (2800, 50.2), (3360, 44.4)):
        method = Method(num_gpus // 280, 8, 35, checkpointing="full", divided_messages=False, **MEGATRON)
        said = plan(gpt(20480, 105, 128), A100, method, 1920)
        yield compared("MT-NLG, 530 B", f"530 B on {num_gpus} GPUs", "s a step", found, said)


def vtrain() -> Iterator[Row]:
    """VTrain's measurements of Megatron on A100, a sample: small networks on one node, large ones on several."""
    for row in read("vtrain.csv"):
        hidden, layers, heads, sequence = numbers(row, "hidden", "layers", "heads", "sequence")
        data, tensor, pipeline, micro_batch = numbers(row, "data", "tensor", "pipeline", "micro_batch")
        said = plan_of_vtrain(hidden, layers, heads, sequence, data, tensor, pipeline, micro_batch, int(row["batch"]))
        source = "vTrain, one node" if int(row["gpus"]) <= 8 else "vTrain, several nodes"
        what = f"{hidden} wide, {layers} blocks, {data} × {tensor} × {pipeline} × {micro_batch}, batch {row['batch']}"
        yield compared(source, what, "s a step", float(row["milliseconds"]) / 1e3, said, kind_of(row))


def plan_of_vtrain(
    hidden: int, layers: int, heads: int, sequence: int, data: int, tensor: int, pipeline: int, micro_batch: int,
    batch: int,
) -> Plan:  # fmt: skip
    """The Plan of one of vTrain's measurements: Megatron, with full recomputation."""
    method = Method(data, tensor, pipeline, checkpointing="full", micro_batch=micro_batch, **MEGATRON)
    return plan(gpt(hidden, layers, heads, sequence), VTRAIN, method, batch)
