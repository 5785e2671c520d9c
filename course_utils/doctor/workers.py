"""What a launch does here: gloo, NCCL between every pair of GPUs, and which addresses it listens on meanwhile."""

import contextlib
import io
import itertools
import os
import time

from .. import hardware
from ..hardware import nvml
from . import FAIL, OK, WARN, Line

NUM_BYTES = 64 * 2**20
NUM_ROUNDS = 5
# Bus bandwidth in GB/s. An A100's pair over NVLink, and a ring of H100s, as NCCL's users have measured them; between
# three GPUs across PCIe and CPUs.
PUBLISHED = {("A100", "NVLink"): 208, ("H100", "NVLink"): 370, ("H200", "NVLink"): 370}
ELSEWHERE = 20
LEAST = 0.5  # of what was published


def gloo(lines):
    if any(line.check == "loopback" and line.status == FAIL for line in lines):
        yield Line("launch", FAIL, "not tried, since 127.0.0.1 cannot be reached", "mend the line on loopback first")
        return
    try:
        run = _launch(_sum_and_listen, world_size=2, backend="gloo", timeout=30)
    except Exception as error:
        yield Line("launch", FAIL, f"two workers with gloo did not come through ({str(error).splitlines()[0]})",
                   "mend what fails above, then run the doctor again; if nothing does, report this line to the course")  # fmt: skip
        return
    if run[0][0] != 1.0:
        yield Line("launch", FAIL, f"gloo's all-reduce of 0 and 1 gave {run[0][0]}", "install again: `make clean`, then `make install`")
    else:
        yield Line("launch", OK, f"two workers with gloo, {run.seconds:.1f} s")
    open_to_all = sorted({address for result in run for address in result[1] if not address.startswith(("127.", "::1"))})
    if open_to_all:
        yield Line("addresses", WARN, f"workers listen on {', '.join(open_to_all)}, where other machines reach them",
                   "unset GLOO_SOCKET_IFNAME, or set it to lo")  # fmt: skip
    else:
        yield Line("addresses", OK, "workers listen on 127.0.0.1 alone")


def nccl(_):
    """Bus bandwidth of NCCL's all-reduce between every pair of GPUs, one pair at a time."""
    gpus, table = hardware.gpus(), nvml.links()
    if len(gpus) < 2 or os.environ.get("COURSE_DEVICE") == "cpu":
        return
    pairs = list(itertools.combinations(range(len(gpus)), 2))
    try:
        measured = _launch(pair_bandwidths, pairs, NUM_BYTES, world_size=len(gpus), backend="nccl", timeout=60 + 2 * len(pairs))[0]
    except Exception as error:
        yield Line("NCCL", FAIL, f"all-reduce between GPUs did not come through ({str(error).splitlines()[0]})",
                   "run again with NCCL_DEBUG=WARN, which says why; NCCL_P2P_DISABLE=1 goes round a broken link")  # fmt: skip
        return
    yield from judge(gpus, table, measured)


def judge(gpus, table, measured):
    """Lines about {(i, j): bus bandwidth in GB/s}: pairs whose link is slower than it should be, or one about all."""
    slow = []
    for (i, j), bandwidth in measured.items():
        published = _published(gpus[i].name, table[i][j])
        if bandwidth < LEAST * published:
            slow.append((i, j))
            yield Line("NCCL", WARN, f"cuda:{i} and cuda:{j}: {bandwidth:.0f} GB/s over {table[i][j]}, {published} are published",
                       "look at `nvidia-smi topo -m` and `nvidia-smi nvlink --status`, and whether others use these GPUs now")  # fmt: skip
    well = [bandwidth for pair, bandwidth in measured.items() if pair not in slow]
    if well:
        yield Line("NCCL", OK, f"all-reduce between {len(well)} pairs of GPUs, {min(well):.0f} to {max(well):.0f} GB/s")


def _published(name, link):
    return next((value for (model, kind), value in PUBLISHED.items() if model in name and kind == link), ELSEWHERE)


def _launch(*arguments, **options):
    """`launch` without what it says to a student, and without standing in line behind others' launches."""
    from ..launch import launch

    shared = os.environ.pop("COURSE_SHARED", None)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return launch(*arguments, **options)
    finally:
        if shared is not None:
            os.environ["COURSE_SHARED"] = shared


def _sum_and_listen():
    """Runs in a worker: the sum of all ranks, and the addresses that this process listens on."""
    import psutil
    import torch
    import torch.distributed as dist

    total = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(total)
    connections = psutil.Process().net_connections("inet")
    listening = {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}
    dist.barrier()
    return total.item(), listening


def pair_bandwidths(pairs, num_bytes):
    """Runs in a worker: {(i, j): bus bandwidth in GB/s} of an all-reduce of `num_bytes` between two ranks alone.

    Of two ranks it is bytes over time, the best of a few rounds: 2(n − 1)/n is 1.
    """
    import torch
    import torch.distributed as dist

    device = hardware.rank_device()
    data = torch.ones(num_bytes // 4, device=device)
    found = {}
    for pair in pairs:
        group = dist.new_group(pair)
        if dist.get_rank() in pair:
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


CHECKS = (gloo, nccl)
