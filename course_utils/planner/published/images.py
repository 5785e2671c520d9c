"""Published speeds of image networks under data parallelism, counted from torchvision's modules."""

from collections.abc import Iterator
from functools import cache

from .. import GPU, Cluster, Group, Method, all_reduce, plan
from .comparison import Row

NVLINK_V100 = 150e9  # the data sheet's 300 GB/s count both directions
# From NVIDIA's technical overview of the P100: 720 GB/s; four per server, with a 25 Gbit/s card.
P100 = Cluster(GPU("P100", 16e9, 720e9, {"fp32": 10.6e12}), gpus_per_node=4, inside=80e9, between=25e9 / 8)


def rows() -> Iterator[Row]:
    """All rows, source by source."""
    for source in (ddp, on_v100, horovod):
        yield from source()


def misses() -> Iterator[Row]:
    """Rows that the planner misses, with the reason."""
    yield from nccl()


@cache
def _counted(name, element_bytes=4):
    """A torchvision network with its native image size."""
    import torch
    import torchvision

    from ..counting import count

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
            yield Row("PyTorch's DDP benchmark", f"{name} × {num_gpus}", "s a step", found, said.step.value, plan=said)


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
            yield Row(source, f"ResNet-50, {what} × {num_gpus}", "images/s", found, said.samples_per_s, plan=said)


def horovod() -> Iterator[Row]:
    """Scaling efficiency of 512 GPUs over one, 64 images per GPU."""
    for name, what, found in (
        ("inception_v3", "Inception V3", 0.90),
        ("resnet101", "ResNet-101", 0.90),
        ("vgg16", "VGG-16", 0.68),
    ):
        yield Row("Horovod", f"{what} × 512", "of ideal", found, _efficiency(name, 512))


def _efficiency(name, num_gpus):
    each = [_images(name, P100, number, 64).samples_per_s / number for number in (1, num_gpus)]
    return each[1] / each[0]


def nccl() -> Iterator[Row]:
    """An all-reduce among 2 × 4 H100; the unpublished link bandwidth follows from 16 GiB in 127,660 µs."""
    group = Group(8, 4)
    bandwidth = 2 * 7 / 8 * 2**34 / 127_660e-6
    cluster = Cluster("H100", gpus_per_node=4, inside=370e9, between=bandwidth)
    reason = "Latency decides here; what NCCL's table for choosing between protocols lacks, we have not found."
    for what, num_bytes, found in (("8 B", 8, 32), ("1 MiB", 2**20, 171.5)):
        yield Row(
            "NCCL tests",
            f"all-reduce of {what}",
            "µs",
            found,
            1e6 * all_reduce(num_bytes, group, cluster).value,
            reason=reason,
        )
