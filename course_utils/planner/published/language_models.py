"""Published speeds of language models: whole tables, with the settings that their sources print."""

from collections.abc import Iterator
from dataclasses import replace

from .. import Cluster, Method, State, plan, transformer
from ..methods import schedule_of
from ..presets import LLAMA
from ..presets import cluster as preset
from . import megatron
from .comparison import BOUND, Row
from .tables import A100, A100_40, H100, compared, kind_of, named, numbers, read, with_siblings

# torchtitan's H100 have 96 GB of HBM2e with 2.4 TB/s, and a power limit of 500 W, which nothing here accounts for.
H100_96 = replace(H100, gpu=replace(H100.gpu, name="H100-96", memory=96e9, bandwidth=2.4e12))


def rows() -> Iterator[Row]:
    """All rows, source by source."""
    for source in (
        megatron.narayanan, megatron.zero_3, megatron.korthikanti, megatron.megatron_core, megatron.bigscience,
        megatron.mt_nlg, llm_foundry, fms_fsdp, torchtitan, torchtitan_fp8, nemo, zhao, megatron.vtrain,
    ):  # fmt: skip
        yield from with_siblings(source())


def llm_foundry() -> Iterator[Row]:
    """MosaicML's MPT models under FSDP, run operation by operation with flash attention."""
    clusters = {"A100-40": A100_40, "A100-80": A100, "H100": H100}
    for row in read("llm_foundry.csv"):
        sequence, num_gpus, micro_batch, accumulated = numbers(row, "sequence", "gpus", "micro_batch", "accumulated")
        method = Method(
            num_gpus, shard=row["sharded"], checkpointing=row["recomputed"], micro_batch=micro_batch,
            precision=row["precision"],
        )  # fmt: skip
        said = plan(
            named(f"mpt-{row['model']}", sequence=sequence),
            clusters[row["gpu"]],
            method,
            num_gpus * micro_batch * accumulated,
        )
        in_fp8 = ", fp8" if row["precision"] == "fp8" else ""
        what = f"{row['model']}, {sequence:,} tokens × {micro_batch}, {num_gpus} {row['gpu']}{in_fp8}"
        yield compared("llm-foundry", what, "tokens/s a GPU", float(row["tokens_per_s"]), said, kind_of(row))


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
        yield compared("fms-fsdp", f"{what} on 128 GPUs", "tokens/s a GPU", found, said)


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
            yield compared("torchtitan", f"Llama 3 8B × {num_gpus}, {what}", "tokens/s a GPU", found, said)
    for job, found in zip(WITH_TENSOR, (597.3, 4378.0)):
        yield compared("torchtitan", _of_tensor(job), "tokens/s a GPU", found, _with_tensor(*job))


def torchtitan_fp8() -> Iterator[Row]:
    """Torchtitan's rows in fp8, scaled by tensor: sharded, with tensor parallelism, and with context parallelism."""
    for num_gpus, _, _, found in SHARDED:
        said = _sharded(num_gpus, precision="fp8")
        yield compared("torchtitan, fp8", f"Llama 3 8B × {num_gpus}", "tokens/s a GPU", found, said)
    for job, plain, hidden in zip(WITH_TENSOR, (809.8, 5078.1), (942.4, 5570.1)):
        for is_hidden, found in ((False, plain), (True, hidden)):
            what = f"{_of_tensor(job)}{', overlapped' if is_hidden else ''}"
            said = _with_tensor(*job, precision="fp8", tensor_overlap=is_hidden)
            yield compared("torchtitan, fp8", what, "tokens/s a GPU", found, said)
    for context, found, _ in WITH_CONTEXT:
        what = f"Llama 3 8B × 8, context {context}, {32768 * context:,} tokens"
        yield compared("torchtitan, fp8", what, "tokens/s a GPU", found, _with_context(context))


def _sharded(num_gpus, fused=True, precision="bf16"):
    method = Method(
        num_gpus, shard="full", micro_batch=2, checkpointing="operations", state=FP32_MASTERS, precision=precision
    )
    return plan(named("llama-3-8b", fused=fused), H100_96, method, 2 * num_gpus)


def _of_tensor(job):
    billions, data, *_ = job
    return f"Llama 3 {billions}B × {8 * data}, 8 × tensor"


def _with_tensor(billions, data, micro_batch, checkpointing, **options):
    method = Method(
        data, 8, shard="full", micro_batch=micro_batch, checkpointing=checkpointing, sequence_parallel=True,
        state=FP32_MASTERS, **options,
    )  # fmt: skip
    return plan(named(f"llama-3-{billions}b", fused=True), H100_96, method, data * micro_batch)


WITH_CONTEXT = (1, 3890.0, 83.9), (2, 2540.0, 84.2), (4, 1071.0, 84.0), (8, 548.0, 84.5)  # ranks, tokens/s a GPU, GiB


def _with_context(context):
    method = Method(
        8 // context, context=context, checkpointing="full", state=FP32_MASTERS, precision="fp8", shard="full"
    )
    return plan(named("llama-3-8b", sequence=32768 * context, fused=True), H100_96, method, 8 // context)


def nemo() -> Iterator[Row]:
    """NVIDIA's NeMo and Megatron-Bridge in fp8 on Hopper and Blackwell, everything overlapped; Mixtral's experts too.

    The tables do not print attention's kernel (taken as native), sequence parallelism (with tensor parallelism),
    recomputation and offloading (none), and how many GPUs of a rack were used (64). By the planner's count of
    memory, 29 of the 64 jobs do not fit, though they ran.
    """
    for row in read("nemo.csv"):
        num_gpus, batch, micro_batch, sequence = numbers(row, "gpus", "batch", "micro_batch", "sequence")
        tensor, pipeline, context, expert, chunks = numbers(row, "tensor", "pipeline", "context", "expert", "chunks")
        method = Method(
            num_gpus // (tensor * pipeline * context), tensor, pipeline, context=context, expert=expert,
            shard="full" if row["fsdp"] == "1" else "optimizer", sequence_parallel=tensor > 1, micro_batch=micro_batch,
            schedule=schedule_of(chunks), chunks=chunks, buckets=False, native_attention=True, precision="fp8",
            tensor_overlap=tensor > 1, pipeline_overlap=pipeline > 1,
        )  # fmt: skip
        whole = preset(f"{num_gpus}x{row['gpu']}")
        said = plan(_of_nemo(row["model"], sequence), whole, method, batch)
        what, found = f"{row['model']} on {num_gpus} GPUs, {row['release']}", float(row["tokens_per_s"])
        yield compared(f"NeMo, {row['gpu']}", what, "tokens/s a GPU", found, said, kind_of(row))


_OF_NEMO = {  # hidden, layers, heads, heads of keys and values
    "gpt-5b": (4096, 24, 32, 32), "gpt-20b": (6144, 44, 48, 48), "gpt-175b": (12288, 96, 96, 96),
    "nemotron-8b": (4096, 32, 32, 32), "nemotron-15b": (6144, 32, 48, 8), "nemotron-22b": (6144, 40, 48, 48),
    "nemotron-340b": (18432, 96, 96, 8),
}  # fmt: skip


def _of_nemo(name, sequence):
    if name not in _OF_NEMO:
        return named(name, sequence=sequence, fused=True)
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
            yield compared("Zhao and others, 2023", what, "TFLOPS a GPU", found, said, BOUND)


def memories() -> Iterator[Row]:
    """GiB that the allocator reserved for Llama 3 8B under torchtitan, as written, compiled, in fp8, with context."""
    for num_gpus, eager, compiled, in_fp8 in ((8, 82.4, 77.0, 76.8), (128, 67.0, 62.0, 61.8)):
        for what, found, fused in (("as written", eager, False), ("compiled", compiled, True), ("fp8", in_fp8, True)):
            said = _sharded(num_gpus, fused, "fp8" if what == "fp8" else "bf16")
            yield Row("torchtitan", f"Llama 3 8B × {num_gpus}, {what}", "GiB", found, said.reserved / 2**30, plan=said)
    for context, _, found in WITH_CONTEXT:
        said = _with_context(context)
        yield Row("torchtitan", f"Llama 3 8B × 8, context {context}", "GiB", found, said.reserved / 2**30, plan=said)
