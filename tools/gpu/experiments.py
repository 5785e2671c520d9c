"""Experiments that need a GPU: python -m tools.gpu.experiments NAME runs one and prints its result as JSON.

Each runs in its own process and reports if the machine has nothing to try it on. tools/gpu/__main__.py runs them all.
"""

import json
import re
import sys

import torch
import torch.nn.functional as F
from torch import nn

from course_utils.kernels import CudaKernel
from course_utils.measure import throughput
from course_utils.models import LectureNet
from tools.gpu import on_a_gpu, ranks

# Chapter 02's kernels, and two more, that add two vectors.
CHAPTERS = "MANY_BLOCKS NO_LOOP ONE_BY_ONE LOADS_FIRST STRIDED"
ONE_LOAD = """
extern "C" __global__ void add(int n, const float *x, const float *y, float *out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (4 * i < n) {
        float4 a = ((const float4 *)x)[i], b = ((const float4 *)y)[i];
        ((float4 *)out)[i] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    }
}
"""


def add_kernels():
    """Return {name: CudaKernel}; "apart" promises the compiler that the vectors do not overlap."""
    found = ranks.chapter("02", CHAPTERS)
    sources = {name: found[name] for name in CHAPTERS.split()} | {"ONE_LOAD": ONE_LOAD}
    for name in ("MANY_BLOCKS", "ONE_BY_ONE"):
        sources[f"{name}, apart"] = re.sub(r"float \*(x|y|out)", r"float *__restrict__ \1", sources[name])
    sources["MANY_BLOCKS, rolled"] = sources["MANY_BLOCKS"].replace("    for", "    #pragma unroll 1\n    for")
    return {name: CudaKernel(source, "add") for name, source in sources.items()}


def main(name):
    print(json.dumps(EXPERIMENTS[name]()))


@on_a_gpu
def data_parallel_twice():
    """Try `DataParallel(device_ids=[0, 0])`: two replicas on one GPU, for those who have only one."""
    torch.manual_seed(0)
    net = LectureNet().cuda()
    x = torch.rand(8, 3, 32, 32, device="cuda")
    alone = net(x)
    try:
        both = nn.DataParallel(net, device_ids=[0, 0])(x)
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {str(error)[:300]}"}
    both.sum().backward()
    return {"largest difference": (both - alone).abs().max().item()}


@on_a_gpu
def vector_add():
    """GB/s of our kernel, of its variants, of torch.add and of a copy, in a CUDA graph: Python's calls do not count."""
    num_sms, found = torch.cuda.get_device_properties(0).multi_processor_count, {}
    add = add_kernels()
    for power in range(16, 29, 2):
        n = 2**power
        x, y, out = torch.rand(3, n, device="cuda")

        def start(kernel, num_blocks, num_threads=256):
            return lambda: kernel[num_blocks, num_threads](n, x, y, out)

        kernels = {
            "our kernel": start(add["MANY_BLOCKS"], n // 256),
            "without a loop": start(add["NO_LOOP"], n // 256),
            "a loop that is not unrolled": start(add["MANY_BLOCKS, rolled"], n // 256),
            "vectors that do not overlap": start(add["MANY_BLOCKS, apart"], n // 256),
            "1,024 threads in a block": start(add["MANY_BLOCKS"], n // 1024, 1024),
            "a quarter of the blocks": start(add["MANY_BLOCKS"], n // 1024),
            "a quarter of the blocks, vectors that do not overlap": start(add["MANY_BLOCKS, apart"], n // 1024),
            "blocks that fit at once": start(add["MANY_BLOCKS"], min(n // 256, 8 * num_sms)),
            "4 neighbours in turns": start(add["ONE_BY_ONE"], n // 1024),
            "4 neighbours in turns, vectors that do not overlap": start(add["ONE_BY_ONE, apart"], n // 1024),
            "4 neighbours, loads first": start(add["LOADS_FIRST"], n // 1024),
            "4 in one load": start(add["ONE_LOAD"], n // 1024),
        }
        for apart in (1, 2, 4, 8, 16, 32):
            kernels[f"{apart} apart"] = lambda apart=apart: add["STRIDED"][n // 256, 256](n, x, y, out, apart)
        ways = {name: (12, way) for name, way in kernels.items()}
        ways |= {"torch.add": (12, lambda: torch.add(x, y, out=out)), "copy": (8, lambda: out.copy_(x))}
        for name, (num_bytes, way) in ways.items():
            found.setdefault(name, {})[n] = gb_per_s(way, num_bytes * n, launches=min(1000, max(10, 2**28 // n)))
        for way in kernels.values():
            out.zero_()
            way()
            torch.testing.assert_close(out, x + y, rtol=0, atol=0)
    largest = 2**28
    return found | {"fraction of torch.add": round(found["our kernel"][largest] / found["torch.add"][largest], 3)}


def gb_per_s(way, num_bytes, launches):
    way()  # warm-up
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(launches):
                way()
        step = graph.replay
    except Exception as error:
        print(f"no graph ({type(error).__name__}: {error}), so Python's calls count", file=sys.stderr)

        def step():
            for _ in range(launches):
                way()

    timing = throughput.measure(step, num_bytes * launches, warmup=2, repeats=5)
    return round(timing.samples_per_s / 1e9, 1)


@on_a_gpu
def ladder_of_steps():
    """Images/s of the lecture's network at batch 64, rung by rung, to see whether 20 × 5,369 images/s is reachable."""
    found = {}
    for name, choices in {
        "plain": {},
        "bf16": {"dtype": torch.bfloat16},
        "bf16, channels_last, fused": {"dtype": torch.bfloat16, "last": True},
        "compiled": {"dtype": torch.bfloat16, "last": True, "compiled": True},
    }.items():
        step = make_step(**choices)
        timing = throughput.measure(lambda: [step() for _ in range(50)], 50 * 64, warmup=3, repeats=5)
        found[name] = round(timing.samples_per_s)
    return found


def make_step(dtype=None, last=False, compiled=False):
    layout = torch.channels_last if last else torch.contiguous_format
    model = LectureNet().cuda().to(memory_format=layout)
    network = torch.compile(model, mode="reduce-overhead") if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), fused=last)
    x = torch.rand(64, 3, 32, 32, device="cuda").contiguous(memory_format=layout)
    y = torch.randint(10, (64,), device="cuda")

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype, enabled=dtype is not None):
            loss = F.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()

    return step


@on_a_gpu
def small_things():
    """The error of float32 and TF32 convolutions, the lecture network's allocated bytes, and the cost of waiting."""
    torch.manual_seed(0)
    before = torch.cuda.memory_allocated()
    net = LectureNet().cuda()
    weights = torch.cuda.memory_allocated() - before
    x = torch.rand(64, 3, 32, 32, device="cuda")
    truth, errors = net.double()(x.double()), {}
    net.float()
    for allowed in (True, False):
        torch.backends.cudnn.allow_tf32 = allowed
        errors["TF32" if allowed else "float32"] = ((net(x) - truth).norm() / truth.norm()).item()
    waiting = throughput.measure(lambda: None, repeats=50)
    return {"weights, bytes": weights, "errors": errors, "waiting, µs": round(1e6 * waiting.median_s, 1)}


EXPERIMENTS = {
    experiment.__name__: experiment
    for experiment in (
        ranks.launch_seconds, ranks.nccl_one_rank, ranks.gloo_shared, ranks.nccl_two_ranks_on_one_gpu, ranks.two_stages,
        data_parallel_twice, ranks.a_shard_of_four, vector_add, ladder_of_steps, ranks.names_in_a_profile,
        ranks.nccl_as_it_was, small_things, ranks.hung_nccl,
    )
}  # fmt: skip

if __name__ == "__main__":
    main(sys.argv[1])
