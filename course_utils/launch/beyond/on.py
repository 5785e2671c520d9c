"""Where a launch's workers run, if not simply here: `on=Nodes(2)`, or `on=Slurm(nodes=4, gpus_per_node=8)`.

`is_here` says whether they run on this machine. Then it is their turn when `follower` is called, and `gpus` are the
environment variables that choose the GPUs which a shared node has reserved for them.
"""

import contextlib
import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path

from ... import hardware
from ...processes import payload
from .. import call
from ..forkserver import handle, rendezvous
from ..worker import surroundings
from . import remote
from .cluster import Cluster
from .folder import Job, made
from .follower import Follower
from .nodes import Agents


def _require_count(what, value, least=1):
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{what} is a whole number, {least} or more, not {value!r}")


@dataclass(frozen=True)
class Nodes:
    """Two or more "nodes" on this machine: a torchrun agent each, which starts its share of the workers.

    Every rank has LOCAL_RANK and LOCAL_WORLD_SIZE of its node; where there is a GPU for each rank, a node sees only its
    own.
    """

    count: int = 2
    is_here = True

    def __post_init__(self):
        _require_count("the number of nodes", self.count)

    def world_size(self, asked):
        """The number of workers: as many as `asked` for, or a launch's default, rounded to equal shares."""
        if asked is None:
            return self.count * max(1, hardware.default_world_size() // self.count)
        if asked % self.count:
            raise ValueError(
                f"world_size is {asked}, which {self.count} nodes cannot share equally: take a multiple of {self.count}"
            )
        return asked

    def shape(self, world_size):
        """(nodes, workers on each, GPUs on each)"""
        share = world_size // self.count
        return self.count, share, share if hardware.choose_backend(world_size).device_type == "cuda" else 0

    def place(self, world_size, backend):
        placement = hardware.choose_backend(world_size, backend)
        note = f"{self.count} nodes on this machine, a torchrun agent each; {placement.note}"
        return dataclasses.replace(placement, note=note)

    @contextlib.contextmanager
    def follower(self, name, world_size, placement, debug, call_fd, gpus):
        forkserver = handle.current()
        with rendezvous.store() as store, surroundings.folder() as temporary, contextlib.ExitStack() as stack:
            captured = surroundings.capture(world_size, placement, store.port, debug, gpus)
            visible = captured.environment.get("CUDA_VISIBLE_DEVICES")  # what is reserved, or was chosen before
            shares = self._gpus(world_size, placement, visible)
            job = Job(self.count, world_size // self.count, ("127.0.0.1", store.port), shares)
            folder = stack.enter_context(made(temporary, call_fd, captured, placement.backend, job))
            fds = [payload.dump((captured, None)), call.dump(remote.run_agent_of_rank, (str(folder.path),), {})]
            for fd in fds:
                stack.callback(os.close, fd)
            yield Follower(folder, Agents(forkserver, self.count, temporary, *fds), world_size)

    def _gpus(self, world_size, placement, chosen):
        """For each node, the variable that lets it see its own of the `chosen` GPUs; nothing where ranks share them, or
        use none.
        """
        if placement.device_type != "cuda" or hardware.num_devices() < world_size:
            return []
        names = chosen.split(",") if chosen else [str(i) for i in range(hardware.num_devices())]
        share = world_size // self.count
        return [{"CUDA_VISIBLE_DEVICES": ",".join(names[i * share : (i + 1) * share])} for i in range(self.count)]


@dataclass(frozen=True)
class Slurm:
    """A job on a Slurm cluster, submitted from where this notebook runs.

    `nodes` machines with `gpus_per_node` GPUs each, and a worker per GPU; with no GPUs, `workers_per_node` workers.
    `time` is the job's limit in minutes; `partition` and `account` as on the cluster; `setup` holds lines of shell that
    run first on the compute nodes (`module load …`); `options` further ones of sbatch, {"mem": "16G"}. `folder` must be
    seen by notebook and compute nodes alike; by default it is in the home folder.
    """

    nodes: int = 1
    gpus_per_node: int = 0
    workers_per_node: int | None = None
    time: float = 10
    partition: str | None = None
    account: str | None = None
    setup: tuple = ()
    options: dict = field(default_factory=dict)
    folder: str | os.PathLike | None = None
    is_here = False

    def __post_init__(self):
        _require_count("Slurm(nodes=…)", self.nodes)
        _require_count("Slurm(gpus_per_node=…)", self.gpus_per_node, 0)
        if self.workers_per_node is not None:
            _require_count("Slurm(workers_per_node=…)", self.workers_per_node)
        if self.workers_per_node is None and not self.gpus_per_node:
            raise ValueError(
                "Slurm(…) needs gpus_per_node, a worker for each, or workers_per_node where there are no GPUs"
            )
        if isinstance(self.time, bool) or not isinstance(self.time, (int, float)) or not self.time > 0:
            raise ValueError(f"Slurm(time=…) is a number of minutes above 0, not {self.time!r}")

    @property
    def _share(self):
        return self.workers_per_node or self.gpus_per_node

    def world_size(self, asked):
        """The number of workers, which the job decides."""
        found = self.nodes * self._share
        if asked not in (None, found):
            raise ValueError(
                f"world_size is {asked}, but {self.nodes} × {self._share} workers are {found}: leave world_size out"
            )
        return found

    def shape(self, world_size):
        """(nodes, workers on each, GPUs on each)"""
        return self.nodes, self._share, self.gpus_per_node

    def place(self, world_size, backend):
        means = "" if backend in (None, "auto") else f" with {backend}"
        workers = f"{self.nodes} × {self._share} workers"
        return hardware.Placement(
            backend, "cuda" if self.gpus_per_node else "cpu", f"{workers} as a job of Slurm{means}"
        )

    @contextlib.contextmanager
    def follower(self, name, world_size, placement, debug, call_fd, gpus):
        captured = surroundings.capture(world_size, placement, 0, debug, {})
        captured = dataclasses.replace(captured, environment=None, cores=None)  # the job's own
        try:
            parent = Path(self.folder) if self.folder is not None else Path.home() / ".cache" / "course_utils"
        except RuntimeError:
            raise ValueError("this user has no home folder: name one that all nodes see, Slurm(folder=…)") from None
        try:
            parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"Slurm(folder=…): {parent} cannot be made ({error.strerror})") from None
        job = Job(self.nodes, self._share, None, [])
        with made(parent.resolve(), call_fd, captured, placement.backend, job) as folder:
            yield Follower(folder, Cluster(self, folder, name), world_size)

    def parameters(self, name):
        """What submitit's SlurmExecutor takes."""
        package = str(Path(__file__).resolve().parents[3])
        found = {
            "job_name": name, "nodes": self.nodes, "ntasks_per_node": 1, "time": max(1, round(self.time)),
            "partition": self.partition, "account": self.account, "gpus_per_node": self.gpus_per_node or None,
            "setup": [f'export PYTHONPATH="{package}${{PYTHONPATH:+:$PYTHONPATH}}"', *self.setup],
            "additional_parameters": self.options,
        }  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}
