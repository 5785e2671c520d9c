"""The ranks of the training program: which one this process is, how they find one another,
and how all fail together.
"""

import contextlib
import datetime
import os
import re
import subprocess
import time
import uuid
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from .. import hardware
from ..checkpoint import CheckpointError


class Refused(Exception):
    """What was asked for cannot be done; the message says in one sentence what, why, and what to do.

    Nothing was lost.
    """


@dataclass
class Place:
    """Which process of how many this is, as torchrun calls it: `num_local` of the `world_size`
    ranks are on this node.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    num_local: int = 1


def find_place():
    """This process's Place: from torchrun's (or launch's) environment, else from Slurm's, else one process by itself.

    For Slurm's tasks the environment is completed to what torchrun would have set.
    Raises Refused where it does not name a place.
    """
    slurm = {} if "RANK" in os.environ else _environment_of_slurm()
    os.environ.update(slurm)
    if "RANK" not in os.environ:
        return Place()
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    usual = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    try:
        rank, local_rank, world_size, num_local = (int(os.environ.get(name, usual.get(name, ""))) for name in names)
    except ValueError:
        told = ", ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)
        raise Refused(
            f"the environment has {told}, but RANK and WORLD_SIZE must both be whole numbers: "
            "start the program with torchrun, or unset RANK"
        ) from None
    if not (0 <= rank < world_size and 0 <= local_rank < num_local):
        raise Refused(
            f"the environment has RANK={rank} of WORLD_SIZE={world_size} and LOCAL_RANK={local_rank} of "
            f"LOCAL_WORLD_SIZE={num_local}, but ranks count from 0 to one less than their number: "
            "start the program with torchrun, or unset RANK"
        )
    return Place(rank, local_rank, world_size, num_local)


def _require_address():
    """Raise Refused unless the environment says where rank 0 is to be found."""
    address, port = (os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
    if not address or not (port or "").isdecimal() or not 0 < int(port) < 65536:
        raise Refused(
            f"the environment has RANK={os.environ['RANK']}, MASTER_ADDR={address or ''} and MASTER_PORT={port or ''}, "
            "which do not say at which node and port rank 0 is: start the program with torchrun, or unset RANK"
        )


def _environment_of_slurm():
    """What torchrun would have set, for a task that srun has started as one of several; else nothing."""
    # A batch file itself has SLURM_PROCID and SLURM_NTASKS, too: it is the step that srun makes which has these tasks.
    num_tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
    if num_tasks == 1:
        return {}
    local_rank, num_local = os.environ["SLURM_LOCALID"], _tasks_here()
    if "SLURM_GPUS_PER_TASK" in os.environ:  # then Slurm shows each task its own GPUs and no others
        local_rank, num_local = 0, 1
    found = {"RANK": os.environ["SLURM_PROCID"], "WORLD_SIZE": num_tasks}
    found |= {"LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": num_local}
    if "MASTER_ADDR" not in os.environ:
        found["MASTER_ADDR"] = _first_host(os.environ["SLURM_STEP_NODELIST"])
    if "MASTER_PORT" not in os.environ:  # another for each step, below those that systems give to anyone
        number = int(os.environ["SLURM_JOB_ID"]) * 16 + int(os.environ.get("SLURM_STEP_ID", 0))
        found["MASTER_PORT"] = 16384 + number % 16384
    return {name: str(value) for name, value in found.items()}


def _tasks_here():
    """The tasks of this step on this node: of "2(x3),1" node 0, 1 and 2 have two, node 3 has one."""
    counts = []
    for part in os.environ["SLURM_STEP_TASKS_PER_NODE"].split(","):
        count, times = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part).groups()
        counts += [int(count)] * int(times or 1)
    return counts[int(os.environ["SLURM_NODEID"])]


def _first_host(nodes):
    """The first name in Slurm's short list of nodes, such as gpu[07-09]."""
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise Refused(
            f"`{' '.join(command)}` does not say which node is the first ({error}): "
            "set MASTER_ADDR to its name before srun"
        ) from error


# Together


def join(options, place, needs_group):
    """Make the process group, if one is needed and none is there; return whether it was made here."""
    if dist.is_initialized() or not needs_group:
        return False
    placement = hardware.choose_backend(place.num_local)
    is_nccl = options.backend != "gloo" and placement.backend == "nccl"
    # gloo beside NCCL carries what lies on the CPU.
    backend = {"backend": "cpu:gloo,cuda:nccl", "device_id": hardware.rank_device()} if is_nccl else {"backend": "gloo"}
    timeout = datetime.timedelta(seconds=options.timeout)
    if "RANK" in os.environ:
        _require_address()
    try:
        store = _new_store(timeout) if "RANK" in os.environ else dist.HashStore()
        dist.init_process_group(store=store, rank=place.rank, world_size=place.world_size, timeout=timeout, **backend)
    except dist.DistError as error:
        address = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        reason = str(error).partition("\n")[0]
        raise Refused(
            f"rank {place.rank} did not find the other {place.world_size - 1} at {address} within "
            f"{options.timeout:g} s ({reason}): does that node answer, and were all ranks started?"
        ) from error
    return True


def _new_store(timeout):
    """The store at MASTER_ADDR:MASTER_PORT, or a part of it that nobody has written to before.

    torchrun keeps one store for all its attempts, and ranks that it has started again would find the addresses of those
    that ended. Its count of restarts differs between nodes, once one is replaced. So rank 0 makes up a name for this
    attempt, all others answer to it, and it confirms whom it has heard: the answers to a name of an earlier rank 0 are
    never confirmed.
    """
    store, rank, world_size = next(rendezvous("env://", timeout=timeout))
    me = uuid.uuid4().hex
    if rank == 0:
        store.set("leader", me)
        heard = [store.get(f"{me}/{other}").decode() for other in range(1, world_size)]  # waits for each
        store.set(f"{me}/heard", ",".join(heard))
        return dist.PrefixStore(me, store)
    end_s = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < end_s:
        leader = store.get("leader").decode()
        store.set(f"{leader}/{rank}", me)
        if store.check([f"{leader}/heard"]) and me in store.get(f"{leader}/heard").decode():
            return dist.PrefixStore(leader, store)
        time.sleep(0.01)
    raise dist.DistStoreError("rank 0 did not confirm that it has heard of all others")


def choose_device(options, place):
    """This rank's device, made current.

    Where a strategy's messages cannot leave from it, that is the CPU, and is said.
    """
    takes_gpu = hardware.choose_backend(place.num_local).device_type == "cuda"
    device = hardware.rank_device() if takes_gpu else torch.device("cpu")
    has_nccl = dist.is_initialized() and "nccl" in str(dist.get_backend_config())
    if device.type == "cuda" and options.strategy in ("fsdp", "pipeline", "tensor") and not has_nccl:
        device = torch.device("cpu")
        if place.rank == 0:
            print(
                f"gloo carries what --strategy {options.strategy} sends between CPUs only: all compute there",
                flush=True,
            )
    return device


@contextlib.contextmanager
def agreement():
    """All ranks leave the block well, or all raise the first one's Refused:
    none is left waiting for one that failed.
    """
    fault = None
    try:
        yield
    except (Refused, CheckpointError, OSError) as error:
        fault = str(error)
    faults = [fault]
    if dist.is_initialized():
        faults = [None] * dist.get_world_size()
        dist.all_gather_object(faults, fault)
    for fault in filter(None, faults):
        raise Refused(fault)


def require_same(what, value):
    """Raise Refused unless `value` is the same on all ranks."""
    values = [value] * (dist.get_world_size() if dist.is_initialized() else 1)
    if dist.is_initialized():
        dist.all_gather_object(values, value)
    for rank, other in enumerate(values):
        if other != values[0]:
            raise Refused(
                f"{what} is {values[0]} on rank 0 and {other} on rank {rank}: every node must see the same files"
            )
