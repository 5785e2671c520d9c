"""What surrounds the workers of one launch: environment, folder, paths, cores, the cells' sources.

`capture` looks at the notebook's own, `Surroundings.restore` makes them a worker's.
"""

import atexit
import contextlib
import logging
import multiprocessing
import multiprocessing.process
import multiprocessing.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import resource_tracker, shared_memory
from typing import Any

from ... import cells, hardware
from ...processes import spawned
from ..forkserver import rendezvous
from . import settings

# the variable that says of a process to which forkserver it belongs, however it has cut its ties
MARK = "COURSE_FORKSERVER"
# Variables that libraries read once, as they are imported: workers find them only in a forkserver that began with them.
_READ_AT_IMPORT = re.compile("(PY)?TORCH(?!ELASTIC|_DIST|_NCCL|_FR_|INDUCTOR_CACHE)|(GOMP|KMP|LD|MALLOC|MKL)_")


@dataclass(frozen=True)
class Surroundings:
    """What a worker takes over from the notebook besides the call itself."""

    environment: dict[str, str] | None  # torchrun's variables included, but for those that differ from rank to rank
    directory: str
    path: list[str]
    cores: set[int] | None  # that this process may run on, None where the system does not say
    sources: dict[str, str]  # file name of a cell → its text, so that tracebacks and inspect find it
    names: dict[str, str]  # file name of a cell → what the notebook calls it
    settings: dict[str, Any]  # of libraries, for settings.restore
    authkey: bytes | None = None  # that opens the notebook's managers, for ranks on this machine
    python: str | None = None  # the interpreter that a worker goes on in, None for the one that it is

    def restore(self, own: dict[str, str]) -> None:
        """In a new worker: take over what the notebook has, and the variables `own`, which differ from rank to rank.

        With `environment` None the worker keeps the one it has; another interpreter keeps its path, after the
        notebook's own.
        """
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        wanted = dict(os.environ)
        if self.environment is not None:
            wanted = self.environment | {name: value for name, value in wanted.items() if name == MARK}
        _set_environment(wanted | own)
        os.chdir(self.directory)
        if self.cores is not None:
            os.sched_setaffinity(0, self.cores)
        sys.path[:] = self.path if self.python is None else self.path + sys.path
        sys.argv[:] = [""]
        sys.modules["__main__"] = types.ModuleType("__main__")
        for name, text in self.sources.items():
            cells.know(name, text, self.names[name])


def _set_environment(wanted):
    """Make `wanted` this process's variables; most of them are already, and each that is set costs memory."""
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in wanted.items() if os.environ.get(name) != value})


def begin_anew(folder: str | None) -> None:
    """Undo in a worker what it inherits from the forkserver and no new process has.

    `folder` is for multiprocessing's temporary files, or None.
    """
    # Not the forkserver's exit handlers: torch's take 80 ms, for things that no worker has begun.
    if hasattr(atexit, "_clear"):
        atexit._clear()
    atexit.register(logging.shutdown)
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    multiprocessing.process.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]
    multiprocessing.util.spawnv_passfds = _spawn_apart
    if folder is not None:
        spawned.give_names(folder)
    _leave_shared_memory_to_its_maker()
    if sys.platform == "linux":  # where Python 3.14 would choose a forkserver, which does not know a cell's classes
        multiprocessing.set_start_method("fork", force=True)

    import numpy
    import torch
    import torch.distributed as dist

    numpy.random.seed()  # or every worker of every launch would draw the forkserver's numbers
    with contextlib.suppress(ValueError):  # the environment was read before the fork
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"].split(",")[0]))
    dist.set_debug_level_from_env()
    hardware.full_precision()


def _leave_shared_memory_to_its_maker():
    """Have a worker's resource tracker take no care of memory that the worker only opens: it would remove it.

    multiprocessing's own children share their parent's tracker; a worker has its own.
    """
    usual, usual_unlink = shared_memory.SharedMemory.__init__, shared_memory.SharedMemory.unlink

    def __init__(self, name=None, create=False, size=0, **settings):
        usual(self, name, create, size, **settings)
        self._is_only_opened = not create and settings.get("track", True)
        if self._is_only_opened:
            resource_tracker.unregister(self._name, "shared_memory")

    def unlink(self):
        if self._is_only_opened:  # which takes it from the tracker's list, too
            resource_tracker.register(self._name, "shared_memory")
        usual_unlink(self)

    shared_memory.SharedMemory.__init__, shared_memory.SharedMemory.unlink = __init__, unlink


_trackers: list[subprocess.Popen] = []


def _spawn_apart(path, args, fds):
    """multiprocessing's way to start its resource tracker, which here outlives the worker's process group.

    It removes the shared memory that others have left behind, and is killed with them otherwise.
    """
    process = subprocess.Popen(args, executable=path, pass_fds=fds, start_new_session=True)
    _trackers.append(process)  # or Popen would complain that nobody waits for it
    return process.pid


def capture(
    world_size: int, placement: hardware.Placement, port: int, debug: bool, gpus: Mapping[str, str]
) -> Surroundings:
    """Return the Surroundings of all ranks; `gpus` are environment variables that choose GPUs.

    Raises FileNotFoundError if the notebook's folder is gone.
    """
    environment = dict(
        os.environ,
        **rendezvous.environment(world_size, port),
        **gpus,
        COURSE_DEVICE=placement.device_type,
        COURSE_IN_WORKER="1",
    )
    if not environment.get("OMP_NUM_THREADS"):
        environment["OMP_NUM_THREADS"] = "1"
    if "inline" in environment.get("MPLBACKEND", ""):
        environment["MPLBACKEND"] = "module://course_utils.launch.worker.no_screen"
    environment.setdefault("KINETO_LOG_LEVEL", "6")  # or torch's profiler tells of a missing GPU, in every worker
    if placement.device_type == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""  # or a worker's DataParallel, for one, would take every GPU it finds
    if debug:
        environment["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    sources = cells.sources()
    names = {name: cells.cell_name(name) for name in sources}
    authkey = bytes(multiprocessing.process.current_process().authkey)
    return Surroundings(
        environment, current_folder(), list(sys.path), cores, sources, names, settings.capture(), authkey
    )


def current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise FileNotFoundError(
            "the folder in which this notebook works has been deleted, and workers need one: os.chdir to another"
        ) from None


def read_at_import() -> dict[str, str]:
    """The environment variables that only a new forkserver would see."""
    return {name: value for name, value in os.environ.items() if _READ_AT_IMPORT.match(name)}


@contextlib.contextmanager
def folder() -> Iterator[str | None]:
    """A folder for multiprocessing's sockets, which a DataLoader's killed processes would leave behind, or None."""
    folder = None
    with contextlib.suppress(OSError):  # full, read-only: multiprocessing will say so where it needs one
        folder = tempfile.mkdtemp(prefix="course-")
    try:
        yield folder
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
