"""`init_process_group` in a worker: it accepts the launch's group if it exists, else makes one at the launch's store.

So a torchrun script's main() runs unchanged. So does a tutorial's that sets MASTER_ADDR to localhost and MASTER_PORT to
12355, where nothing listens here.
"""

import datetime
import functools
import inspect
import os
import sys
from typing import Any

from ...hardware import rank_device
from ...processes import network
from . import recorder

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def set_timeout(timeout: datetime.timedelta, group: Any) -> None:
    """Make `timeout` the timeout of collectives in the process group `group`."""
    import torch.distributed as dist

    c10d = dist.distributed_c10d
    (getattr(c10d, "set_timeout", None) or c10d._set_pg_timeout)(timeout, group)  # before torch 2.13 the latter


class Joining:
    """Replaces torch's `init_process_group` in this worker, from its construction on."""

    def __init__(self):
        import torch.distributed as dist

        self._usual, self._ours, self._has_said, self._count = dist.init_process_group, None, False, 0
        self._port, self._signature = os.environ["MASTER_PORT"], inspect.signature(self._usual)

        @functools.wraps(self._usual)
        def init_process_group(*args, **kwargs):
            try:
                given = self._signature.bind(*args, **kwargs).arguments
            except TypeError:
                return self._usual(*args, **kwargs)  # raises torch's own TypeError
            if self._ours is not None and dist.is_initialized() and dist.group.WORLD is self._ours:
                self._be_content(given)
            else:
                self._join(given)

        # Also in distributed_c10d, by whose name pickle sends `from torch.distributed import init_process_group` of a
        # cell, and in device_mesh, where init_device_mesh makes the group if there is none.
        for module in (dist, dist.distributed_c10d, dist.device_mesh):
            module.init_process_group = init_process_group
        rendezvous = sys.modules["torch.distributed.rendezvous"]
        self._usual_store = rendezvous._create_c10d_store
        rendezvous._create_c10d_store = self._store

    def join(self, backend: str) -> None:
        """Make the default process group of the launch."""
        import torch.distributed as dist

        self._count, self._port = self._count + 1, os.environ["MASTER_PORT"]
        recorder.begin_anew()
        with network.names_from_files():
            if backend == "nccl":
                # gloo for tensors on the CPU, so that the same cell works with and without GPUs.
                self._usual("cpu:gloo,cuda:nccl", device_id=rank_device())
            else:
                self._usual(backend)
        self._ours = dist.group.WORLD

    def _be_content(self, given):
        """Accept the launch's group for the one asked for. Raises ValueError if they differ."""
        import torch.distributed as dist

        if differences := list(_differences(given)):
            raise ValueError(
                f"init_process_group asks for {' and '.join(differences)}: leave it out, or make the group yourself, "
                "with launch(…, backend=None)"
            )
        if (timeout := given.get("timeout")) is not None:
            set_timeout(timeout, self._ours)
        if not self._has_said and dist.get_rank() == 0:
            print("init_process_group: there is a process group already; it is used as it is")
        self._has_said = True

    def _join(self, given):
        """Make a group, at the launch's store unless the arguments or MASTER_ADDR name another."""
        import torch.distributed as dist

        recorder.begin_anew()
        if given.get("store") is not None or given.get("init_method") not in (None, "env://"):
            return self._usual(**given)  # may name a host that only a name server knows
        if os.environ.get("MASTER_ADDR") not in _LOOPBACK_NAMES:
            os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # rank 0 serves a store elsewhere
            return self._usual(**given)
        with network.names_from_files():
            self._usual(**given | self._place(given))
        self._ours = dist.group.WORLD

    def _store(self, hostname, port, rank, world_size, timeout, *more):
        """Return the launch's store if the environment names one on this machine, whatever its port.

        Replaces torch's `_create_c10d_store`, which init_rpc, for one, calls.
        """
        import torch.distributed as dist

        told = tuple(os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"))
        if told == (hostname, str(port), "True") and hostname in _LOOPBACK_NAMES:
            return dist.TCPStore("127.0.0.1", int(self._port), is_master=False, timeout=timeout)
        return self._usual_store(hostname, port, rank, world_size, timeout, *more)

    def _place(self, given):
        """Return arguments that give each further group a part of the store without addresses of earlier groups."""
        import torch.distributed as dist

        self._count += 1
        if self._count == 1:
            return {}
        store = dist.TCPStore("127.0.0.1", int(self._port), is_master=False)
        numbers = {name: given.get(name, -1) for name in ("rank", "world_size")}
        numbers = {name: int(os.environ[name.upper()]) if n == -1 else n for name, n in numbers.items()}
        return {"store": dist.PrefixStore(f"group {self._count}", store), "init_method": None} | numbers


def _differences(given):
    """Yield a text for each argument that the launch's group does not match."""
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import BackendConfig

    for name, is_so in (("rank", dist.get_rank()), ("world_size", dist.get_world_size())):
        if given.get(name, -1) not in (-1, is_so):
            yield f"{name}={given[name]}, and here it is {is_so}"
    backend, device = given.get("backend"), given.get("device_id")
    here = BackendConfig(dist.get_backend_config()).get_device_backend_map()
    wanted = {}
    if backend is not None:
        is_known = ":" in backend or backend.lower() in dist.Backend.backend_list
        wanted = BackendConfig(dist.Backend(backend)).get_device_backend_map() if is_known else {"cpu": backend}
    # A script that asks for gloo has its tensors on the CPU; that CUDA tensors use NCCL here does no harm.
    if any(here.get(kind) != name for kind, name in wanted.items() if (kind, name) != ("cuda", "gloo")):
        yield f"{backend}, and this launch has {','.join(f'{kind}:{name}' for kind, name in here.items())}"
    if device is not None:
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if device.index is None:
            yield f"device_id={device}, and torch takes it only with an index, as in cuda:0"
        elif device != rank_device():
            yield f"device_id={device}, and this rank's device is {rank_device()}"
