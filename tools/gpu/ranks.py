"""Experiments with ranks: what NCCL does on this machine, and gloo beside it."""

import functools
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_utils import hardware, launch, rank_device
from course_utils.measure import throughput
from course_utils.models import LectureNet
from tools.gpu import on_a_gpu

MIB = 2**20


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
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        from torch.nn.parallel import DistributedDataParallel

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)  # which GPUs before the A100 emulate
        ways = {
            "DDP": DistributedDataParallel, "FSDP": fully_shard,
            "FSDP, bf16": functools.partial(fully_shard, mp_policy=policy),
        }  # fmt: skip

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
        for name, wrap in ways.items():
            model = wrap(LectureNet().to(device))
            labels = torch.zeros(8, dtype=torch.long, device=device)
            F.cross_entropy(model(torch.rand(8, 3, 32, 32, device=device)), labels).backward()
            done.append(name)
        return done

    def result(debug):
        try:
            run = launch(work, world_size=1, backend="nccl", debug=debug)
        except RuntimeError as error:
            return {"refused": str(error)[:600]}
        return {"done": run[0], "seconds": round(run.seconds, 2)}

    return result(False) | {"with TORCH_DISTRIBUTED_DEBUG=DETAIL": result(True)}


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
        time.sleep(2 * dist.get_rank())  # rank 0 leaves early: does it wait where the communicator is destroyed?
        return {"sum": total, "received": theirs[0].item(), "ms for 64 MiB": round(1e3 * timing.median_s, 1)}

    run = launch(work, world_size=2, backend=None, timeout=60)
    return {"ranks": run.results, "seconds": round(run.seconds, 2)}


def chapter(number, assigned):
    from tools import notebooks  # its imports are among the carried wheels, which the pass itself does not have

    return notebooks.definitions(notebooks.notebook_paths([number])[0], assigned.split())


def two_stages():
    """Chapter 12's pipelines of two stages against one process; each direction of messages has a group of NCCL."""
    names, place = chapter("12", "digits x y SCHEDULES"), hardware.choose_backend(2)
    is_shared = place.device_type == "cuda" and place.backend != "nccl"
    x, y, sizes = names["x"], names["y"], names["SIZES"][2]
    whole = nn.Sequential(*names["make_layers"](64)).double()
    F.cross_entropy(whole(x.double()), y).backward()

    def work():
        if is_shared:
            join_nccl_as_a_host_of_its_own()
        return names["run_three"](x, y, sizes, torch.float64)

    run = launch(work, world_size=2, backend=None if is_shared else place.backend, timeout=60)
    for results in zip(*run):  # the two ranks', for each schedule
        found = [gradient for _, gradients, _ in results for gradient in gradients]
        torch.testing.assert_close(found, names["gradients"](whole), rtol=1e-9, atol=1e-12)
    return {"schedules like one process": len(run[0]), "seconds": round(run.seconds, 2)}


def a_shard_of_four():
    """Whether one of four ranks trains in chapter 10's allowance, of which a GPU's allocator and libraries take a part.

    The other three are simulated: their messages do not come, so the numbers are wrong and the bytes are right.
    """
    names = chapter("10", "needed")
    names["shard_device"] = rank_device

    def work():
        from torch.testing._internal.distributed.fake_pg import FakeStore

        os.environ["TORCH_DIST_INIT_BARRIER"] = "0"  # a simulated store cannot count who has come
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
        return names["train_within"](names["needed"] // 2, names["make_sharded"])

    try:
        return {"allowed, MB": names["needed"] / 2e6, "outcome": launch(work, world_size=1, backend=None)[0]}
    except RuntimeError as error:
        return {"allowed, MB": names["needed"] / 2e6, "outcome": str(error).partition("\n")[0][:300]}


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
def nccl_as_it_was():
    """The names in a profile, and a group of one rank, with the NCCL backend before NCCL2; torch chooses at import."""
    command, env = [sys.executable, "-m", "tools.gpu.experiments"], os.environ | {"TORCH_DIST_USE_NCCL2": "0"}
    found = {}
    for name in ("names_in_a_profile", "nccl_one_rank"):
        done = subprocess.run([*command, name], env=env, capture_output=True, text=True)
        found[name] = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1]
    return found
