"""What others measured and printed, beside what the planner says: how far may it be trusted?

    python -m course_utils.planner.published        the table, and the median and worst error

No row here is an input of the planner. Inputs are one row for each kind of GPU and the data sheets (`clusters`).
"""

from dataclasses import dataclass
from statistics import median

from . import Cluster, Method, plan, transformer

A100, A100_40 = Cluster("A100-80"), Cluster("A100-40")
H100 = Cluster("H100", inside=370e9, between=400e9)
HEADS = {2304: 24, 3072: 32, 6144: 48, 12288: 96, 20480: 128}


@dataclass(frozen=True)
class Row:
    """A published number, and the planner's for it, in one `unit`."""

    source: str
    what: str
    unit: str
    published: float
    predicted: float

    @property
    def error(self):
        """Of the prediction, as a share of what was published."""
        return self.predicted / self.published - 1


def rows():
    """All rows, source by source."""
    for each in (narayanan, korthikanti, llm_foundry, torchtitan, fsdp):
        yield from each()


def _gpt(hidden, layers, heads):
    return transformer(hidden, layers, heads, 2048, 51200)


def narayanan():
    """Full recomputation, fp16, gradients sent after the backward pass; one sequence a micro-batch."""
    source = "Narayanan and others, 2021"
    table = [  # billions of parameters, hidden, layers, tensor, pipeline, GPUs, batch, TFLOPS a GPU
        (1.7, 2304, 24, 1, 1, 32, 512, 137), (3.6, 3072, 30, 2, 1, 64, 512, 138), (18.4, 6144, 40, 8, 1, 256, 1024, 135),
        (145.6, 12288, 80, 8, 8, 1536, 2304, 148), (529.6, 20480, 105, 8, 35, 2520, 2520, 163),
        *((175, 12288, 96, 8, 12, num_gpus, 1536, found) for num_gpus, found in ((384, 153), (768, 149), (1536, 141))),
    ]  # fmt: skip
    for billions, hidden, layers, tensor, pipeline, num_gpus, batch, found in table:
        method = Method(num_gpus // (tensor * pipeline), tensor, pipeline, checkpointing="full", precision="fp16", overlap=False)
        said = plan(_gpt(hidden, layers, HEADS[hidden]), A100, method, batch)
        yield Row(source, f"{billions} B on {num_gpus} GPUs", "TFLOPS a GPU", found, said.flops_per_s / 1e12)


def korthikanti():
    """Seconds a step of 22 B and 175 B parameters, recomputed in full, and selectively with the sequence divided, too."""
    source = "Korthikanti and others, 2022"
    table = [  # hidden, layers, heads, stages, chunks, batch, micro-batch, seconds with full, with selective
        (22, 6144, 48, 64, 1, 1, 4, 4, 1.42, 1.10), (175, 12288, 96, 96, 8, 3, 64, 1, 18.13, 13.75),
    ]  # fmt: skip
    for billions, hidden, layers, heads, pipeline, chunks, batch, micro_batch, full, selective in table:
        for checkpointing, found in (("full", full), ("selective", selective)):
            method = Method(
                1, 8, pipeline, checkpointing=checkpointing, sequence_parallel=checkpointing == "selective", precision="fp16",
                micro_batch=micro_batch, schedule="interleaved" if chunks > 1 else "1f1b", chunks=chunks,
            )  # fmt: skip
            said = plan(_gpt(hidden, layers, heads), A100, method, batch)
            yield Row(source, f"{billions} B, {checkpointing} recomputation", "s a step", found, said.step.value)


def _mpt(hidden, layers, heads):
    return transformer(hidden, layers, heads, 2048, 50368, biases=False, dropout=False, fused_attention=True)


def llm_foundry():
    """FSDP over all GPUs. The micro-batch is printed for the H100 only; on the A100 it hardly matters."""
    table = [
        ("7 B, A100", A100_40, _mpt(4096, 32, 32), "full", {8: 3679, 16: 3645, 32: 3725, 64: 3665, 128: 3623}, 8),
        ("1 B, A100", A100_40, _mpt(2048, 24, 16), "none", {8: 19271, 16: 19085, 64: 19001, 128: 18647}, 4),
        ("1 B, H100", H100, _mpt(2048, 24, 16), "none", {16: 46037, 32: 45130, 64: 44402}, 20),
    ]
    for what, cluster, network, checkpointing, published, micro_batch in table:
        for num_gpus, found in published.items():
            method = Method(num_gpus, shard="full", checkpointing=checkpointing, micro_batch=micro_batch)
            said = plan(network, cluster, method, num_gpus * micro_batch)
            yield Row("llm-foundry", f"{what} × {num_gpus}", "tokens/s a GPU", found, said.tokens_per_s)


def torchtitan():
    """Llama 3 8B. The planner's norms and activations are fused ones, as a compiler makes them."""
    network = transformer(
        4096, 32, 32, 8192, 128256, feed_forward=14336, gated=True, kv_heads=8, biases=False, positions=False, tied=False,
        dropout=False, fused_attention=True,
    )  # fmt: skip
    said = plan(network, H100, Method(8, shard="full", micro_batch=2, checkpointing="selective"), 16)
    for what, found in (("as written", 5762), ("compiled", 6667)):
        yield Row("torchtitan", f"Llama 3 8B × 8, {what}", "tokens/s a GPU", found, said.tokens_per_s)


def fsdp():
    """175 B parameters on 128 and 512 GPUs, 2 Tbit/s between nodes; "more than" 173 and 186 are printed."""
    cluster, network = Cluster("A100-80", between=250e9), transformer(12288, 96, 96, 2048, 50257)
    for num_gpus in (128, 512):
        for micro_batch, found in ((1, 173), (2, 186)):
            method = Method(num_gpus, shard="full", checkpointing="full", micro_batch=micro_batch)
            said = plan(network, cluster, method, num_gpus * micro_batch)
            what = f"175 B × {num_gpus}, batch {micro_batch}"
            yield Row("Zhao and others, 2023", what, "TFLOPS a GPU", found, said.flops_per_s / 1e12)


def main():
    found = list(rows())
    for row in found:
        print(f"{row.source:28s} {row.what:32s} {row.published:9.4g} {row.predicted:9.4g} {row.error:+7.1%}  {row.unit}")
    errors = sorted(abs(row.error) for row in found)
    print(f"{len(found)} rows: median error {median(errors):.1%}, worst {errors[-1]:.1%}")


if __name__ == "__main__":
    main()
