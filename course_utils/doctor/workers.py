"""Checks launches: gloo, CUDA, NCCL between every pair of GPUs, and the addresses that workers listen on."""

import contextlib
import io
import itertools
import os
import time
from statistics import median

from .. import hardware
from ..hardware import nvml
from ..hardware.description import count
from . import FAIL, OK, WARN, Line, first_line
from .gpus import wanted
from .machine import is_loopback

NUM_BYTES = 256 * 2**20
NUM_ROUNDS = 5
# Bus bandwidth in GB/s on nodes of eight GPUs, where a switch gives a pair all links of a GPU. NCCL's users measured it
# between two A100s, and in a ring of eight H100s.
PUBLISHED = {"A100-SXM4": 208, "H100 80GB HBM3": 370}
LEAST = 0.5  # of the published value, or of the median of pairs of the same kind
CURES = {  # words in CUDA's error messages: what to do
    "802": "start NVIDIA's fabric manager (`sudo systemctl start nvidia-fabricmanager`)",
    "system not yet initialized": "start NVIDIA's fabric manager (`sudo systemctl start nvidia-fabricmanager`)",
    "803": "restart the container, or the machine: its driver was updated while it ran",
    "unknown error": "load the driver's module again (`sudo rmmod nvidia_uvm; sudo modprobe nvidia_uvm`), "
    "or restart the machine",
    "out of memory": "use `nvidia-smi` to see whose processes use it",
    "busy or unavailable": "have it put into the default compute mode (`sudo nvidia-smi -c 0`), "
    "or wait until it is free",
}


def gloo(lines):
    if any(line.check == "loopback" and line.status == FAIL for line in lines):
        yield Line("launch", FAIL, "not tried, since 127.0.0.1 cannot be reached", "fix loopback first")
        return
    try:
        run = _launch(_sum_and_listen, world_size=2, backend="gloo", timeout=30)
    except Exception as error:
        yield Line(
            "launch",
            FAIL,
            f"two workers with gloo failed ({_why(error)})",
            "fix what fails above, then run the doctor again; if nothing does, report this line to the course",
        )
        return
    if run[0][0] != 1.0:
        yield Line(
            "launch",
            FAIL,
            f"gloo's all-reduce of 0 and 1 gave {run[0][0]}",
            "install again: `make clean`, then `make install`",
        )
    else:
        yield Line("launch", OK, f"two workers with gloo, {run.seconds:.1f} s")
    yield _about_addresses("workers", set().union(*(addresses for _, addresses in run)))


def cuda(_):
    """Check that every visible GPU can compute, in a worker each."""
    gpus = wanted()
    if not gpus:
        return
    try:
        run = _launch(_add_on_gpu, world_size=len(gpus), backend="gloo", timeout=60)
        yield Line("CUDA", OK, f"{len(gpus)} of {len(gpus)} GPUs compute, {run.seconds:.1f} s")
    except Exception as error:
        why = _why(error)
        cure = next(
            (cure for words, cure in CURES.items() if words in why.lower()),
            "look for NVRM in `sudo dmesg`, and restart the machine",
        )
        yield Line("CUDA", FAIL, f"a GPU that is there does not compute ({why})", cure)


def nccl(_):
    """Check the bus bandwidth of NCCL's all-reduce between every pair of GPUs, one pair at a time."""
    gpus, table = wanted(), nvml.links()
    if len(gpus) < 2:
        return
    pairs = list(itertools.combinations(range(len(gpus)), 2))
    try:
        run = _launch(
            measure_and_listen, pairs, NUM_BYTES, world_size=len(gpus), backend="nccl", timeout=60 + 2 * len(pairs)
        )
    except Exception as error:
        yield Line(
            "NCCL",
            FAIL,
            f"all-reduce between GPUs failed ({_why(error)})",
            "fix the line CUDA first, if it fails; NCCL_P2P_DISABLE=1 works around a broken link",
        )
        return
    yield from judge(gpus, table, run[0][0])
    yield _about_addresses("workers with NCCL", set().union(*(addresses for _, addresses in run)))


def judge(gpus, table, measured):
    """Yield Lines about `measured`, {(i, j): bus bandwidth in GB/s}: one about slow pairs, one about the others."""
    kinds = {pair: (gpus[pair[0]].name, table[pair[0]][pair[1]]) for pair in measured}
    slow = {}
    for pair, bandwidth in measured.items():
        alike = [other for each, other in measured.items() if kinds[each] == kinds[pair]]
        name, link = kinds[pair]
        published = next(
            (value for model, value in PUBLISHED.items() if model in name and link == "NVLink" and len(gpus) >= 8), 0
        )
        expected = max(published, median(alike))
        if bandwidth < LEAST * expected:
            slow[pair] = f"cuda:{pair[0]} and cuda:{pair[1]} {bandwidth:.0f} instead of {expected:.0f} GB/s over {link}"
    if slow:
        yield Line(
            "NCCL",
            WARN,
            "; ".join(list(slow.values())[:4]) + (f"; {len(slow) - 4} more" if len(slow) > 4 else ""),
            "look at `nvidia-smi topo -m` and `nvidia-smi nvlink --status`, and whether others use these GPUs now",
        )
    well = [bandwidth for pair, bandwidth in measured.items() if pair not in slow]
    if well:
        yield Line(
            "NCCL",
            OK,
            f"all-reduce between {count(len(well), 'pair')} of GPUs, {min(well):.0f} to {max(well):.0f} GB/s",
        )


def _about_addresses(who, addresses):
    """Return a Line about the `addresses` that workers listen on."""
    open_to_all = sorted(address for address in addresses if not is_loopback(address))
    if open_to_all:
        said = f"{who} listen on {', '.join(open_to_all)}, where other machines reach them"
        return Line("addresses", WARN, said, "report this line to the course")
    return Line("addresses", OK, f"{who} listen on 127.0.0.1 only")


def _launch(*arguments, **options):
    """Call `launch` without its output, and without waiting for other users' launches on a shared node."""
    from ..launch import launch

    shared = os.environ.pop("COURSE_SHARED", None)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return launch(*arguments, **options)
    finally:
        if shared is not None:
            os.environ["COURSE_SHARED"] = shared


def _why(error):
    """Return the first line of a launch's error, and the last line that a worker printed."""
    logs = [
        line for log in getattr(getattr(error, "run", None), "logs", ()) for line in log.splitlines() if line.strip()
    ]
    return first_line(error) + (f"; last printed: {logs[-1].strip()[:200]}" if logs else "")


def _add_on_gpu():
    """Add on this rank's GPU, in a worker. Raises RuntimeError if the sum is wrong."""
    import torch

    device = hardware.rank_device()
    if torch.ones(1000, device=device).sum().item() != 1000:
        raise RuntimeError(f"{device} adds wrongly")


def _sum_and_listen():
    """Return the sum of all ranks, and the addresses that this worker listens on."""
    import torch
    import torch.distributed as dist

    total = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(total)
    listening = _listening()
    dist.barrier()
    return total.item(), listening


def measure_and_listen(pairs, num_bytes):
    """Return `pair_bandwidths(pairs, num_bytes)`, and the addresses that this worker then listens on."""
    import torch.distributed as dist

    measured = pair_bandwidths(pairs, num_bytes)
    listening = _listening()
    dist.barrier()
    return measured, listening


def _listening():
    import psutil

    connections = psutil.Process().net_connections("inet")
    return {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}


def pair_bandwidths(pairs, num_bytes):
    """Return {(i, j): bus bandwidth in GB/s} of an all-reduce of `num_bytes` between two ranks; runs in workers.

    The best of NUM_ROUNDS rounds counts. For n = 2 ranks, bus bandwidth is bytes over time, since 2(n − 1)/n is 1.
    """
    import torch
    import torch.distributed as dist

    device = hardware.rank_device()
    data = torch.ones(num_bytes // 4, device=device)
    found = {}
    for pair in pairs:
        group = dist.new_group(pair)
        if dist.get_rank() in pair:
            print(f"pair {pair}")  # for the error's text, if this hangs
            seconds = []
            for _ in range(1 + NUM_ROUNDS):  # the first one makes the connection
                data.fill_(1)
                hardware.wait_for_gpus()
                started = time.perf_counter()
                dist.all_reduce(data, group=group)
                hardware.wait_for_gpus()
                seconds.append(time.perf_counter() - started)
            if data[0].item() != 2:
                raise RuntimeError(f"the sum of two ones between ranks {pair[0]} and {pair[1]} is {data[0].item()}")
            found[pair] = num_bytes / min(seconds[1:]) / 1e9
        dist.barrier()
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, found)
    return {pair: bandwidth for each in gathered for pair, bandwidth in each.items()}


CHECKS = (gloo, cuda, nccl)
