"""Experiments that need a GPU: python -m tools.gpu.experiments NAME runs one and prints its result as JSON.

Each runs in its own process and reports if the machine has nothing to try it on. tools/gpu/__main__.py runs them all.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_utils import hardware, launch, rank_device
from course_utils.kernels import CudaKernel
from course_utils.measure import throughput
from course_utils.models import LectureNet

MIB = 2**20
ADD = """
extern "C" __global__
void add(int n, const float *x, const float *y, float *out)
{
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    int stride = blockDim.x * gridDim.x;
    for (int i = index; i < n; i += stride)
        out[i] = x[i] + y[i];
}
"""


def main(name):
    print(json.dumps(EXPERIMENTS[name]()))


def on_a_gpu(experiment):
    """Wrap an experiment to report that it was not tried if there is no GPU."""

    def run():
        if hardware.devices(1)[0].type != "cuda":
            return {"not tried": "there is no GPU here"}
        return experiment()

    run.__name__, run.__doc__ = experiment.__name__, experiment.__doc__
    return run


def launch_seconds():
    """Seconds from the call of `launch` to its last rank's first sum, by number of workers; first launch separate."""

    def exchange():
        dist.all_reduce(torch.ones(1, device=rank_device() if "nccl" in dist.get_backend_config() else "cpu"))
        return time.monotonic()

    def seconds(world_size, backend):
        begin = time.monotonic()
        return round(max(launch(exchange, world_size=world_size, backend=backend).results) - begin, 3)

    found = {"first": seconds(2, "gloo")}
    cases = [(n, "gloo") for n in (2, 4, 8)]
    cases += [(n, "nccl") for n in (1, 2, 4, 8) if hardware.choose_backend(n).backend == "nccl"]
    return found | {f"{n} {backend}": [seconds(n, backend) for _ in range(5)] for n, backend in cases}


@on_a_gpu
def nccl_one_rank():
    """Run the collectives, DDP and fully_shard in a group of one rank, as on every machine with one GPU."""

    def work():
        from torch.distributed.fsdp import fully_shard
        from torch.nn.parallel import DistributedDataParallel

        device, done = rank_device(), []
        x = torch.ones(4, device=device)
        for call in (
            dist.all_reduce,
            lambda t: dist.broadcast(t, 0),
            lambda t: dist.all_gather([torch.empty_like(t)], t),
        ):
            call(x)
            done.append(x.sum().item())
        dist.barrier()
        for wrap in (DistributedDataParallel, fully_shard):
            model = wrap(LectureNet().to(device))
            labels = torch.zeros(8, dtype=torch.long, device=device)
            F.cross_entropy(model(torch.rand(8, 3, 32, 32, device=device)), labels).backward()
            done.append(wrap.__name__)
        return done

    run = launch(work, world_size=1, backend="nccl")
    return {"done": run[0], "seconds": round(run.seconds, 2)}


@on_a_gpu
def gloo_shared():
    """Check whether four ranks on one GPU with gloo train as one does."""

    def train():
        from torch.nn.parallel import DistributedDataParallel

        torch.manual_seed(0)
        model = DistributedDataParallel(LectureNet().to(rank_device()))
        generator = torch.Generator().manual_seed(1)
        x, y = torch.rand(32, 3, 32, 32, generator=generator), torch.randint(10, (32,), generator=generator)
        parts = (part.chunk(dist.get_world_size())[dist.get_rank()].to(rank_device()) for part in (x, y))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        F.cross_entropy(model(next(parts)), next(parts)).backward()
        optimizer.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()

    four, one = launch(train, world_size=4, backend="gloo"), launch(train, world_size=1, backend="gloo")
    return {"largest difference": (four[0] - one[0]).abs().max().item(), "seconds": round(four.seconds, 2)}


def join_nccl_as_a_host_of_its_own():
    os.environ.update(NCCL_HOSTID=f"host{os.environ['RANK']}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))


@on_a_gpu
def nccl_two_ranks_on_one_gpu():
    """Check whether NCCL, which refuses two ranks on one GPU, takes them for two hosts if NCCL_HOSTID differs."""

    def work():
        join_nccl_as_a_host_of_its_own()
        x = torch.full((16 * MIB,), 1.0 + dist.get_rank(), device="cuda:0")  # 64 MiB
        dist.all_reduce(x)
        total = x[0].item()
        timing = throughput.measure(lambda: dist.all_reduce(x), repeats=5)
        partner = 1 - dist.get_rank()
        mine, theirs = torch.full((4,), float(dist.get_rank()), device="cuda:0"), torch.empty(4, device="cuda:0")
        for request in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, partner), dist.P2POp(dist.irecv, theirs, partner)]
        ):
            request.wait()
        return {"sum": total, "received": theirs[0].item(), "ms for 64 MiB": round(1e3 * timing.median_s, 1)}

    run = launch(work, world_size=2, backend=None, timeout=60)
    return {"ranks": run.results, "seconds": round(run.seconds, 2)}


@on_a_gpu
def hung_nccl():
    """One rank calls one collective too many: record the messages and the time from the timeout to the end."""

    def work():
        join_nccl_as_a_host_of_its_own()
        x = torch.ones(4, device="cuda:0")
        dist.all_reduce(x)
        if dist.get_rank() == 0:
            dist.all_reduce(x)
        return x.sum().item()

    begin = time.monotonic()
    try:
        launch(work, world_size=2, backend=None, timeout=10)
    except RuntimeError as error:
        return {"seconds": round(time.monotonic() - begin, 2), "said": str(error)[:600]}
    return {"seconds": round(time.monotonic() - begin, 2), "said": "nothing"}


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
    """GB/s of our kernel, of torch.add and of a copy, in a CUDA graph so that Python's calls do not count."""
    add, found = CudaKernel(ADD, "add"), {}
    for power in range(16, 29, 2):
        n = 2**power
        x, y, out = torch.rand(3, n, device="cuda")
        ways = {
            "our kernel": (12, lambda: add[(n + 255) // 256, 256](n, x, y, out)),
            "torch.add": (12, lambda: torch.add(x, y, out=out)),
            "copy": (8, lambda: out.copy_(x)),
        }
        for name, (num_bytes, way) in ways.items():
            found.setdefault(name, {})[n] = gb_per_s(way, num_bytes * n, launches=max(10, 2**22 // n))
        out.zero_()
        ways["our kernel"][1]()
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
def names_in_a_profile():
    """The names of an all-reduce in a profile, for chapter 09's figure, between two GPUs or two ranks on one."""
    has_two = hardware.choose_backend(2).backend == "nccl"
    run = launch(names_of_an_all_reduce, not has_two, world_size=2, backend="nccl" if has_two else None, timeout=60)
    return {"names": run[0], "NCCL2": os.environ.get("TORCH_DIST_USE_NCCL2", "not set")}


def names_of_an_all_reduce(joins=False):
    """Return the names, in a worker. Two ranks or more: in a group of one rank NCCL launches no kernel."""
    from torch.profiler import profile

    if joins:
        join_nccl_as_a_host_of_its_own()
    x = torch.ones(MIB, device="cuda:0" if joins else rank_device())
    dist.all_reduce(x)
    with profile() as trace:
        dist.all_reduce(x)
        hardware.wait_for_gpus()
    return sorted({(e.device_type.name, e.name) for e in trace.events() if "reduce" in e.name.lower()})


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
        launch_seconds, nccl_one_rank, gloo_shared, nccl_two_ranks_on_one_gpu, data_parallel_twice, vector_add,
        ladder_of_steps, names_in_a_profile, small_things, hung_nccl,
    )
}  # fmt: skip

if __name__ == "__main__":
    main(sys.argv[1])
