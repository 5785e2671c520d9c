"""What surrounds the workers of one launch: environment, rendezvous, a folder, the cells' sources."""

import contextlib
import functools
import linecache
import os
import shutil
import socket
import sys
import tempfile

from .worker import Surroundings, names_from_files


class store:
    """The rendezvous: a TCPStore of this launch alone, on a loopback port that the system chose."""

    def __enter__(self):
        from torch.distributed import TCPStore

        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        self.port = listener.getsockname()[1]
        # The store takes the listening socket over: between choosing a port and serving it nobody else can take it.
        with names_from_files():  # the store connects to itself, and the first time asks for a name as the workers do
            self._store = TCPStore(
                "127.0.0.1", self.port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
            )
        return self

    def __exit__(self, *_):
        self._store = None


def describe(world_size, placement, port, debug, gpus):
    """Return the Surroundings of all ranks; `gpus` are environment variables that choose GPUs."""
    size, loopback = str(world_size), _loopback()
    environment = dict(
        os.environ,
        WORLD_SIZE=size,
        LOCAL_WORLD_SIZE=size,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",  # every rank is a client of the store: none serves one of its own
        TORCH_DIST_INIT_BARRIER="1",  # or a rank that returns at once would be gone while others still connect to it
        GLOO_SOCKET_IFNAME=loopback,
        NCCL_SOCKET_IFNAME=loopback,
        COURSE_DEVICE=placement.device_type,
        COURSE_IN_WORKER="1",
        **gpus,
    )
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("KINETO_LOG_LEVEL", "6")  # or torch's profiler tells of a missing GPU, in every worker
    if debug:
        environment["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    cells = {
        name: "".join(entry[2])
        for name, entry in list(linecache.cache.items())
        if len(entry) == 4 and entry[1] is None and not os.path.exists(name)
    }
    return Surroundings(environment, os.getcwd(), list(sys.path), cells, placement.backend)


@functools.cache
def _loopback():
    """The loopback interface's name: lo on Linux, lo0 on macOS."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    raise RuntimeError("this machine has no loopback interface (127.0.0.1), which workers need to find each other")


@contextlib.contextmanager
def folder():
    """A folder for multiprocessing's sockets, which a DataLoader's killed processes would leave behind, or None."""
    folder = None
    with contextlib.suppress(OSError):  # full, read-only: multiprocessing will say so where it needs one
        folder = tempfile.mkdtemp(prefix="course-")
    try:
        yield folder
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
