"""The methods of starting workers, and the cost of a launch, a returned result, a logged row and a marked phase."""

import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from course_utils import launch, log
from course_utils.measure import saves, throughput  # noqa: F401 saves: what a measurement calls
from course_utils.parallel import ring
from tools.bench import from_file


def first_all_reduce():  # as in from_file, but defined in a cell
    dist.all_reduce(torch.ones(1))
    return time.monotonic()


def one_step():
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(10, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 10)).sum().backward()
    optimizer.step()
    return time.monotonic()


def by_launch(world_size):
    return launch(first_all_reduce, world_size=world_size).results


def by_ddp_step(world_size):
    return launch(one_step, world_size=world_size).results


def by_spawn(world_size):
    with tempfile.TemporaryDirectory() as out:
        torch.multiprocessing.spawn(from_file.by_hand, args=(world_size, free_port(), out), nprocs=world_size)
        return [float((Path(out) / str(rank)).read_text()) for rank in range(world_size)]


def by_torchrun(world_size):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={world_size}"]
    done = subprocess.run([*command, "-m", "tools.bench.from_file", "all_reduce"], capture_output=True, text=True)
    return [float(line) for line in done.stdout.split()]


pools = {}


def by_loky(world_size):
    from loky import ProcessPoolExecutor

    if world_size not in pools:
        for pool in pools.values():
            pool.shutdown(kill_workers=True)
        pools.clear()
        pools[world_size] = ProcessPoolExecutor(max_workers=world_size)
    port = free_port()
    waiting = [pools[world_size].submit(from_file.by_hand, rank, world_size, port) for rank in range(world_size)]
    return [each.result(timeout=120) for each in waiting]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def timed(method, world_size):
    """Seconds until the last rank's first all-reduce (or the end of its step), and until the method returns."""
    begin = time.monotonic()
    ends = method(world_size)
    return max(ends) - begin, time.monotonic() - begin


def seconds(function, *args, **kwargs):
    begin = time.monotonic()
    function(*args, **kwargs)
    return time.monotonic() - begin


def private_dirty_mb(work):
    """Private memory of this worker in MB, after one DDP step or none."""
    if work:
        one_step()
    dist.barrier()
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(text.split("Private_Dirty:")[1].split()[0]) / 1024


def give(num_bytes):
    return torch.ones(num_bytes // 4) if dist.get_rank() == 0 else None


def log_cost():
    """Microseconds of one call of log."""
    begin = time.perf_counter()
    for _ in range(20_000):
        log(loss=0.5, samples=64)
    return (time.perf_counter() - begin) / 20_000 * 1e6


def marks_cost():
    """Seconds that marking five phases adds to a step."""

    def step(phase):
        for name in ("load", "copy", "forward", "backward", "update"):
            with phase(name):
                pass

    found = throughput.measure_phases(step, repeats=500)
    return found.step.median_s - found.unmarked_step.median_s


def race(num_bytes, repeats=8):
    """Seconds of the ring and of the library on this rank, run in turn; the medians, as in chapter 08."""
    x, found = torch.zeros(num_bytes // 4), {ring.all_reduce: [], dist.all_reduce: []}
    for i in range(repeats):
        for way in list(found)[:: (-1) ** i]:  # alternate the order, which affects caches
            dist.barrier()
            found[way] += throughput.measure(lambda: way(x), warmup=0, repeats=1).seconds
    return [statistics.median(times[1:]) for times in found.values()]
