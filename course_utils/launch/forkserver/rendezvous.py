"""How the ranks of a launch find one another: a TCPStore in the notebook, with all ranks as clients."""

import contextlib
import datetime
import os
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ...processes import network
from ..watch.errors import LauncherError
from ..worker import joining, recorder

_joining: joining.Joining  # set by `prepare`


class store:
    """A TCPStore for one launch, on a port that the system chooses.

    It listens on `address`; "" means all addresses of this node.
    """

    def __init__(self, address="127.0.0.1"):
        self._address = address

    def __enter__(self):
        from torch.distributed import TCPStore

        try:
            network.loopback()  # without loopback, the store would wait minutes for itself
        except RuntimeError as error:
            raise LauncherError(str(error)) from None
        with socket.socket() as listener:
            listener.bind((self._address, 0))
            listener.listen(1024)
            self.port = listener.getsockname()[1]
            # The store takes over the listening socket, so no other process can take the port in between.
            fd = os.dup(listener.fileno())
        try:
            with network.names_from_files():  # it connects to itself, and looks up a host name
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
    """Return torchrun's variables that are equal on all ranks, so not RANK and LOCAL_RANK."""
    loopback = network.loopback()
    return dict(
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",  # every rank is a client: none serves a store of its own
        TORCH_DIST_INIT_BARRIER="1",  # else a rank could return while others still connect to it
        GLOO_SOCKET_IFNAME=loopback,
        NCCL_SOCKET_IFNAME=loopback,
    )


def prepare() -> Callable[[str | None], None]:
    """Replace `init_process_group` in this worker, before it loads its function, and return `join`.

    The worker's messages are noted from then on.
    """
    global _joining
    _joining = joining.Joining()
    recorder.take_over()
    return join


def join(backend: str | None) -> None:
    """Join the default process group, in a prepared worker; with `backend` None leave that to the worker function."""
    if backend is not None:
        _joining.join(backend)


def collectives() -> dict[str, int | None]:
    """Return {name of a process group: number of its collectives and messages so far} of this worker.

    "" names the default group; the result is {"": None} if the numbers are not known.
    """
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        names = {group: name for group, name in c10d._world.pg_names.items()} | {c10d.group.WORLD: ""}
        return {name: group._get_sequence_number_for_group() for group, name in names.items()}
    except (AttributeError, RuntimeError, ValueError):  # there is no group yet, or not any more
        return {"": None}


def still_meet(names: Iterable[str], seconds: float) -> bool:
    """Return whether a barrier succeeds in each of the named gloo groups that this rank is a member of."""
    import torch.distributed as dist

    try:
        groups = {name: group for group, name in dist.distributed_c10d._world.pg_names.items()} | {"": dist.group.WORLD}
        for name in names:
            if name in groups:  # monitored, since a plain barrier has no timeout of its own
                dist.monitored_barrier(groups[name], datetime.timedelta(seconds=seconds))
    except (AttributeError, RuntimeError, ValueError):
        return False
    return True
