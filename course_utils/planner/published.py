"""Published measurements beside the planner's predictions, to show how far it can be trusted.

    python -m course_utils.planner.published        the table, and the median and worst error

No row here is an input of the planner; its inputs are one row per kind of GPU and the data sheets (`clusters`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from statistics import median

from . import GPU, Cluster, Group, Method, State, all_reduce, plan, transformer

A100, A100_40 = Cluster("A100-80"), Cluster("A100-40")
H100 = Cluster("H100", inside=370e9, between=400e9)
NVLINK_V100 = 150e9  # the data sheet's 300 GB/s count both directions
# From NVIDIA's technical overview of the P100: 720 GB/s; four per server, with a 25 Gbit/s card.
P100 = Cluster(GPU("P100", 16e9, 720e9, {"fp32": 10.6e12}), gpus_per_node=4, inside=80e9, between=25e9 / 8)
HEADS = {2304: 24, 3072: 32, 6144: 48, 12288: 96, 20480: 128}


@dataclass(frozen=True)
class Row:
    """A published number and the planner's prediction, in one `unit`; `reason` explains a large difference."""

    source: str
    what: str
    unit: str
    published: float
    predicted: float
    reason: str = ""

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted / self.published - 1


def rows() -> Iterator[Row]:
    """All rows, source by source."""
    for each in (narayanan, korthikanti, llm_foundry, torchtitan, fsdp, ddp, on_v100, horovod):
        yield from each()


def memories() -> Iterator[Row]:
    """Peak bytes; torchtitan keeps parameters and gradients in fp32 and gathers and sends them in bf16."""
    method = Method(8, shard="full", micro_batch=2, checkpointing="selective", state=State(4, 4, 8, 2))
    said = plan(_llama(), H100, method, 16).peak.value / 2**30
    for what, found in (("as written", 82.4), ("compiled", 77.0)):
        yield Row("torchtitan", f"Llama 3 8B × 8, {what}", "GiB", found, said)


def misses() -> Iterator[Row]:
    """Rows that the planner misses, with the reason."""
    yield from nccl()
    yield Row(
        "Horovod",
        "VGG-16 × 512",
        "of ideal",
        0.68,
        _efficiency("vgg16", 512),
        "Perhaps since convolutions of 3×3 take fewer products on a GPU (Winograd's): less for messages to hide "
        "behind.",
    )


def _gpt(hidden, layers, heads):
    return transformer(hidden, layers, heads, 2048, 51200)


def narayanan() -> Iterator[Row]:
    """Full recomputation, fp16, gradients sent after the backward pass, one sequence per micro-batch."""
    source = "Narayanan and others, 2021"
    table = [  # B parameters, hidden, layers, tensor, pipeline, GPUs, batch, TFLOPS per GPU
        (1.7, 2304, 24, 1, 1, 32, 512, 137),
        (3.6, 3072, 30, 2, 1, 64, 512, 138),
        (18.4, 6144, 40, 8, 1, 256, 1024, 135),
        (145.6, 12288, 80, 8, 8, 1536, 2304, 148),
        (529.6, 20480, 105, 8, 35, 2520, 2520, 163),
        *((175, 12288, 96, 8, 12, num_gpus, 1536, found) for num_gpus, found in ((384, 153), (768, 149), (1536, 141))),
    ]
    for billions, hidden, layers, tensor, pipeline, num_gpus, batch, found in table:
        method = Method(
            num_gpus // (tensor * pipeline), tensor, pipeline, checkpointing="full", precision="fp16", overlap=False
        )
        said = plan(_gpt(hidden, layers, HEADS[hidden]), A100, method, batch)
        yield Row(source, f"{billions} B on {num_gpus} GPUs", "TFLOPS a GPU", found, said.flops_per_s / 1e12)


def korthikanti() -> Iterator[Row]:
    """Seconds per step of 22 B and 175 B parameters: fully recomputed, and selectively with a divided sequence."""
    source = "Korthikanti and others, 2022"
    table = [  # B parameters, hidden, layers, heads, stages, chunks, batch, micro-batch, s full, s selective
        (22, 6144, 48, 64, 1, 1, 4, 4, 1.42, 1.10),
        (175, 12288, 96, 96, 8, 3, 64, 1, 18.13, 13.75),
    ]
    for billions, hidden, layers, heads, pipeline, chunks, batch, micro_batch, full, selective in table:
        for checkpointing, found in (("full", full), ("selective", selective)):
            method = Method(
                1,
                8,
                pipeline,
                checkpointing=checkpointing,
                sequence_parallel=checkpointing == "selective",
                precision="fp16",
                micro_batch=micro_batch,
                schedule="interleaved" if chunks > 1 else "1f1b",
                chunks=chunks,
            )
            said = plan(_gpt(hidden, layers, heads), A100, method, batch)
            yield Row(source, f"{billions} B, {checkpointing} recomputation", "s a step", found, said.step.value)


def _mpt(hidden, layers, heads):
    return transformer(hidden, layers, heads, 2048, 50368, biases=False, dropout=False, fused_attention=True)


def llm_foundry() -> Iterator[Row]:
    """FSDP over all GPUs; the micro-batch is published for the H100 only, and hardly matters on the A100."""
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


def _llama():
    return transformer(
        4096,
        32,
        32,
        8192,
        128256,
        feed_forward=14336,
        gated=True,
        kv_heads=8,
        biases=False,
        positions=False,
        tied=False,
        dropout=False,
        fused_attention=True,
    )


def torchtitan() -> Iterator[Row]:
    """Llama 3 8B; the planner assumes fused norms and activations, as a compiler produces."""
    said = plan(_llama(), H100, Method(8, shard="full", micro_batch=2, checkpointing="selective"), 16)
    for what, found in (("as written", 5762), ("compiled", 6667)):
        yield Row("torchtitan", f"Llama 3 8B × 8, {what}", "tokens/s a GPU", found, said.tokens_per_s)


def fsdp() -> Iterator[Row]:
    """A model of 175 B parameters on 128 and 512 GPUs, 2 Tbit/s between nodes; published as "more than" 173 and 186."""
    cluster, network = Cluster("A100-80", between=250e9), transformer(12288, 96, 96, 2048, 50257)
    for num_gpus in (128, 512):
        for micro_batch, found in ((1, 173), (2, 186)):
            method = Method(num_gpus, shard="full", checkpointing="full", micro_batch=micro_batch)
            said = plan(network, cluster, method, num_gpus * micro_batch)
            what = f"175 B × {num_gpus}, batch {micro_batch}"
            yield Row("Zhao and others, 2023", what, "TFLOPS a GPU", found, said.flops_per_s / 1e12)


@cache
def _counted(name, element_bytes=4):
    """A torchvision network with its native image size."""
    import torch
    import torchvision

    from .counting import count

    is_inception = name == "inception_v3"  # no auxiliary head, and no slow initialisation with its warning
    side, options = (299, {"aux_logits": False, "init_weights": False}) if is_inception else (224, {})
    with torch.device("meta"):
        module = getattr(torchvision.models, name)(**options)
        return count(module, torch.zeros(2, 3, side, side), element_bytes=element_bytes)


def _images(name, cluster, num_gpus, micro_batch, precision="fp32"):
    """The Plan of a torchvision network under DDP."""
    network = _counted(name, 4 if precision == "fp32" else 2)
    method = Method(num_gpus, precision=precision, optimizer="momentum", micro_batch=micro_batch)
    return plan(network, cluster, method, num_gpus * micro_batch)


def ddp() -> Iterator[Row]:
    """PyTorch's DDP benchmark, 32 images per GPU; the first number of each row is without DDP."""
    cluster = Cluster("V100-32", inside=NVLINK_V100, between=50e9)
    for name, published in (
        ("resnet50", (0.097, 0.100, 0.103, 0.103, 0.104, 0.104)),
        ("resnext50_32x4d", (0.145, 0.147, 0.153, 0.153, 0.157, 0.157)),
    ):
        for num_gpus, found in zip((1, 1, 2, 4, 8, 16), published):
            said = _images(name, cluster, num_gpus, 32)
            yield Row("PyTorch's DDP benchmark", f"{name} × {num_gpus}", "s a step", found, said.step.value)


def on_v100() -> Iterator[Row]:
    """ResNet-50 on one and on eight V100: fp32 with 128 images per GPU, mixed precision with 256."""
    cluster = Cluster("V100-16", inside=NVLINK_V100)
    for source, what, micro_batch, precision, published in (
        ("OneFlow DLPerf", "fp32", 128, "fp32", (351, 2707)),
        ("DeepLearningExamples", "fp32", 128, "fp32", (367, 2855)),
        ("DeepLearningExamples", "mixed", 256, "fp16", (1200, 8322)),
    ):
        for num_gpus, found in zip((1, 8), published):
            said = _images("resnet50", cluster, num_gpus, micro_batch, precision)
            yield Row(source, f"ResNet-50, {what} × {num_gpus}", "images/s", found, said.samples_per_s)


def horovod() -> Iterator[Row]:
    """Scaling efficiency of 512 GPUs over one, 64 images per GPU."""
    for name, what in (("inception_v3", "Inception V3"), ("resnet101", "ResNet-101")):
        yield Row("Horovod", f"{what} × 512", "of ideal", 0.90, _efficiency(name, 512))


def _efficiency(name, num_gpus):
    each = [_images(name, P100, number, 64).samples_per_s / number for number in (1, num_gpus)]
    return each[1] / each[0]


def nccl() -> Iterator[Row]:
    """An all-reduce among 2 × 4 H100; the unpublished link bandwidth follows from 16 GiB in 127,660 µs."""
    group = Group(8, 4)
    bandwidth = 2 * 7 / 8 * 2**34 / 127_660e-6
    cluster = Cluster("H100", gpus_per_node=4, inside=370e9, between=bandwidth)
    reason = (
        "NCCL's table is for choosing between protocols: the kernel's start and the network card's proxy are not in it."
    )
    for what, num_bytes, found in (("8 B", 8, 32), ("1 MiB", 2**20, 171.5)):
        yield Row(
            "NCCL tests",
            f"all-reduce of {what}",
            "µs",
            found,
            1e6 * all_reduce(num_bytes, group, cluster).value,
            reason,
        )


def main() -> None:
    for each in (rows, memories, misses):
        found = list(each())
        for row in found:
            print(
                f"{row.source:28s} {row.what:32s} {row.published:9.4g} {row.predicted:9.4g} {row.error:+7.1%}  "
                f"{row.unit}"
            )
        errors = sorted(abs(row.error) for row in found)
        print(f"{len(found)} {each.__name__}: median error {median(errors):.1%}, worst {errors[-1]:.1%}")
        for reason in dict.fromkeys(row.reason for row in found if row.reason):
            print(reason)


if __name__ == "__main__":
    main()
