"""How the ranks of a launch find one another: a store in the notebook, of which all of them are clients."""

import contextlib
import datetime
import os
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ...processes import network
from ..watch.errors import LauncherError
from ..worker import joining

_joining: joining.Joining  # this worker's, once it is prepared


class store:
    """The rendezvous: a TCPStore of this launch alone, on a port of `address` that the system chose;
    "" is all of this node's.
    """

    def __init__(self, address="127.0.0.1"):
        self._address = address

    def __enter__(self):
        from torch.distributed import TCPStore

        try:
            network.loopback()  # without one the store would wait for itself for minutes
        except RuntimeError as error:
            raise LauncherError(str(error)) from None
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


def environment(world_size: int, port: int) -> dict[str, str]:
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


def prepare() -> Callable[[str | None], None]:
    """In a worker, before it loads its function: return how to join the default process group, a function of
    the backend; None leaves that to the worker.
    """
    global _joining
    _joining = joining.Joining()
    return join


def join(backend: str | None) -> None:
    """In a worker that is prepared: become a member of the default process group, unless `backend` is None."""
    if backend is not None:
        _joining.join(backend)


def collectives() -> dict[str, int | None]:
    """In a worker: {name of a process group: how many collectives and messages it has been through}.

    "" is the default one; {"": None} where that is not known.
    """
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        names = {group: name for group, name in c10d._world.pg_names.items()} | {c10d.group.WORLD: ""}
        return {name: group._get_sequence_number_for_group() for group, name in names.items()}
    except (AttributeError, RuntimeError, ValueError):  # there is no group yet, or no more
        return {"": None}


def still_meet(names: Iterable[str], seconds: float) -> bool:
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
