"""How the ranks of a launch find one another: a store in the notebook, of which all of them are clients."""

import contextlib
import datetime
import functools
import os
import socket
import sys

from ..processes import network

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class store:
    """The rendezvous: a TCPStore of this launch alone, on a port of `address` that the system chose;
    "" is all of this node's.
    """

    def __init__(self, address="127.0.0.1"):
        self._address = address

    def __enter__(self):
        from torch.distributed import TCPStore

        with socket.socket() as listener:
            listener.bind((self._address, 0))
            listener.listen(1024)
            self.port = listener.getsockname()[1]
            # The store takes the listening socket over: between choosing a port and serving it nobody else can take it.
            fd = os.dup(listener.fileno())
        try:
            with network.names_from_files():  # it connects to itself, and asks for a name as the workers do
                self._store = TCPStore(
                    "127.0.0.1", self.port, is_master=True, wait_for_workers=False, master_listen_fd=fd
                )
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(fd)
            raise
        return self

    def __exit__(self, *_):
        self._store = None


def environment(world_size, port):
    """What torchrun sets, equal on all ranks; RANK and LOCAL_RANK are each worker's own."""
    loopback = network.loopback()
    return dict(
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",  # every rank is a client of the store: none serves one of its own
        TORCH_DIST_INIT_BARRIER="1",  # or a rank that returns at once would be gone while others still connect to it
        GLOO_SOCKET_IFNAME=loopback,
        NCCL_SOCKET_IFNAME=loopback,
    )


def join(backend):
    """In a worker: become a member of the default process group; with `backend` None, prepare for doing so itself."""
    import torch.distributed as dist

    from ..hardware import rank_device

    if backend is None:
        _let_it_join()
        return
    with network.names_from_files():
        if backend == "nccl":
            # gloo beside it, for the tensors that are on the CPU: the same cell works with and without GPUs.
            dist.init_process_group("cpu:gloo,cuda:nccl", device_id=rank_device())
        else:
            dist.init_process_group(backend)


def collectives():
    """In a worker: {name of a process group: how many collectives and messages it has been through}.

    "" is the default one; {"": None} where that is not known.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        names = {group: name for group, name in c10d._world.pg_names.items()} | {c10d.group.WORLD: ""}
        return {name: group._get_sequence_number_for_group() for group, name in names.items()}
    except (AttributeError, RuntimeError, ValueError):  # there is no group yet, or no more
        return {"": None}


def still_meet(names, seconds):
    """In a worker with gloo: whether the members of each group of these names that this rank is in can still meet."""
    import torch.distributed as dist

    try:
        groups = {name: group for group, name in dist.distributed_c10d._world.pg_names.items()} | {"": dist.group.WORLD}
        for name in names:
            if name in groups:  # a barrier that gives up: one that waits for ever could not be left
                dist.monitored_barrier(groups[name], datetime.timedelta(seconds=seconds))
    except (AttributeError, RuntimeError, ValueError):
        return False
    return True


def _let_it_join():
    """Give the worker an `init_process_group` that asks no name server, and finds the launch's store in any case.

    Tutorials set MASTER_ADDR to localhost and MASTER_PORT to 12355, where nobody would listen here.
    """
    import torch.distributed as dist

    usual, port = dist.init_process_group, os.environ["MASTER_PORT"]

    @functools.wraps(usual)
    def init_process_group(*args, **kwargs):
        if len(args) > 1 or kwargs.get("init_method"):  # it may name a host that only a name server knows
            return usual(*args, **kwargs)
        if os.environ.get("MASTER_ADDR") not in _LOOPBACK_NAMES:
            os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # a store elsewhere, which is rank 0's business
            return usual(*args, **kwargs)
        theirs = os.environ.get("MASTER_PORT", port)
        os.environ["MASTER_PORT"] = port
        try:
            with network.names_from_files():
                return usual(*args, **kwargs)
        finally:
            os.environ["MASTER_PORT"] = theirs

    dist.init_process_group = dist.distributed_c10d.init_process_group = init_process_group
