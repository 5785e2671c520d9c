"""The ranks of the training program: their place, the process group, the device, and failing together."""

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
    """Raised if the program cannot do what was asked; the message says in one sentence what, why, and what to do.

    Nothing was lost.
    """


@dataclass
class Place:
    """This process's place among the ranks, in torchrun's terms; `num_local` of the ranks are on this node."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    num_local: int = 1


def find_place():
    """Return this process's Place, from the environment of torchrun or launch, else of Slurm; else a single process.

    For Slurm's tasks, sets the variables that torchrun would have set. Raises Refused if the environment is wrong.
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
    """Raise Refused unless the environment has rank 0's address and port."""
    address, port = (os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
    if not address or not (port or "").isdecimal() or not 0 < int(port) < 65536:
        raise Refused(
            f"the environment has RANK={os.environ['RANK']}, MASTER_ADDR={address or ''} and MASTER_PORT={port or ''}, "
            "which do not say at which node and port rank 0 is: start the program with torchrun, or unset RANK"
        )


def _environment_of_slurm():
    """Return the variables that torchrun would have set, for one of several tasks that srun has started; else {}."""
    # Only a step, made by srun, has several tasks; a batch file has SLURM_PROCID and SLURM_NTASKS, too.
    num_tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
    if num_tasks == 1:
        return {}
    local_rank, num_local = os.environ["SLURM_LOCALID"], _tasks_here()
    if "SLURM_GPUS_PER_TASK" in os.environ:  # then each task sees only its own GPUs
        local_rank, num_local = 0, 1
    found = {"RANK": os.environ["SLURM_PROCID"], "WORLD_SIZE": num_tasks}
    found |= {"LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": num_local}
    if "MASTER_ADDR" not in os.environ:
        found["MASTER_ADDR"] = _first_host(os.environ["SLURM_STEP_NODELIST"])
    if "MASTER_PORT" not in os.environ:  # one per step, below the range of ephemeral ports
        number = int(os.environ["SLURM_JOB_ID"]) * 16 + int(os.environ.get("SLURM_STEP_ID", 0))
        found["MASTER_PORT"] = 16384 + number % 16384
    return {name: str(value) for name, value in found.items()}


def _tasks_here():
    """Return the number of this step's tasks on this node: "2(x3),1" means two on nodes 0 to 2, one on node 3."""
    counts = []
    for part in os.environ["SLURM_STEP_TASKS_PER_NODE"].split(","):
        count, times = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part).groups()
        counts += [int(count)] * int(times or 1)
    return counts[int(os.environ["SLURM_NODEID"])]


def _first_host(nodes):
    """Return the first host name in Slurm's list of nodes, such as gpu[07-09]. Raises Refused if scontrol fails."""
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise Refused(
            f"`{' '.join(command)}` does not say which node is the first ({error}): "
            "set MASTER_ADDR to its name before srun"
        ) from error


# The process group


def join(options, place, needs_group):
    """Make the process group if one is needed and there is none; return whether it was made here.

    Raises Refused if the ranks do not find one another.
    """
    if dist.is_initialized() or not needs_group:
        return False
    placement = hardware.choose_backend(place.num_local)
    is_nccl = options.backend != "gloo" and placement.backend == "nccl"
    # Beside NCCL, gloo sends tensors on the CPU.
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
    """Return an unused part of the store at MASTER_ADDR:MASTER_PORT.

    torchrun keeps one store for all its attempts, so restarted ranks would find the addresses of ranks that have ended.
    Its restart counts differ between nodes once a node is replaced, and cannot name the attempts. So rank 0 invents a
    name for this attempt, all other ranks answer to it, and rank 0 confirms the answers. Answers to the name of an
    earlier rank 0 are never confirmed.
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
    """Return this rank's device, made current.

    If gloo cannot send the strategy's messages from a GPU, this is the CPU, and rank 0 prints that.
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
    """Have all ranks succeed in this block, or all raise the Refused of the first that failed.

    So no rank waits for one that has failed.
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
