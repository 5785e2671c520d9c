"""What workers take over from the notebook: environment, folder, paths, cores, sources of the cells.

`capture` records the notebook's, `Surroundings.restore` applies them in a worker.
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
import time
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import resource_tracker, shared_memory
from typing import Any

from ... import cells, hardware, notebook
from ...processes import linux, spawned
from ..forkserver import rendezvous
from . import settings

# This environment variable marks all descendants of a forkserver, even in sessions of their own.
MARK = "COURSE_FORKSERVER"
# Variables that libraries read once, at import: for workers, those with which the forkserver began count.
_READ_AT_IMPORT = re.compile(
    "(PY)?TORCH(?!ELASTIC|_DIST(?!_USE_NCCL2$)|_NCCL|_FR_|INDUCTOR_CACHE)|(GOMP|KMP|LD|MALLOC|MKL)_"
)
_LONGEST = 107 - len("/course-01234567/listener-01234567")  # bytes, of a folder for sockets


@dataclass(frozen=True)
class Surroundings:
    """What a worker takes over from the notebook besides the call itself."""

    environment: dict[str, str] | None  # with torchrun's variables that are equal on all ranks
    directory: str
    path: list[str]
    cores: set[int] | None  # CPU affinity, None if the system does not tell
    sources: dict[str, str]  # file name of a cell → its text, for tracebacks and inspect
    names: dict[str, str]  # file name of a cell → its name in messages
    settings: dict[str, Any]  # of libraries, for settings.restore
    authkey: bytes | None = None  # of the notebook's managers, for ranks on this machine
    python: str | None = None  # another interpreter for the workers
    umask: int | None = None  # of files that are made; None if the system does not tell
    argv: tuple[str, ...] = ("",)  # of the script that launches; a kernel's own options are none of the worker's

    def restore(self, own: dict[str, str]) -> None:
        """Apply these to a new worker, together with `own`, the environment variables that differ between ranks.

        With `environment` None the worker keeps its environment. Another interpreter also keeps its path, after the
        notebook's.
        """
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        wanted = dict(os.environ)
        if self.environment is not None:
            wanted = self.environment | {name: value for name, value in wanted.items() if name == MARK}
        _set_environment(wanted | own)
        time.tzset()  # C read TZ before the fork
        if self.umask is not None:
            os.umask(self.umask)
        os.chdir(self.directory)
        if self.cores is not None:
            os.sched_setaffinity(0, self.cores)
        sys.path[:] = self.path if self.python is None else self.path + sys.path
        sys.argv[:] = self.argv
        sys.modules["__main__"] = types.ModuleType("__main__")
        for name, text in self.sources.items():
            cells.know(name, text, self.names[name])


def _set_environment(wanted):
    """Make `wanted` this process's environment; variables already equal are not set, since setting costs memory."""
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in wanted.items() if os.environ.get(name) != value})


def begin_anew(folder: str | None) -> None:
    """Reset in a worker the state that it inherits from the forkserver and that a new process would not have.

    `folder` is for multiprocessing's temporary files, or None.
    """
    # Drop the forkserver's exit handlers: torch's take 80 ms, for things that no worker has begun.
    if hasattr(atexit, "_clear"):
        atexit._clear()
    atexit.register(logging.shutdown)
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    multiprocessing.process.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]
    multiprocessing.util.spawnv_passfds = _spawn_apart
    if folder is not None:
        spawned.give_names(folder)
    _leave_shared_memory_to_its_maker()
    if sys.platform == "linux":
        # Python 3.14's default is a forkserver, which does not have the classes of cells. The default alone is changed:
        # `set_start_method` in the student's code still works, as in a new process.
        default: Any = multiprocessing.context._default_context  # type: ignore[attr-defined]
        default._default_context, default._actual_context = multiprocessing.get_context("fork"), None

    import numpy
    import torch
    import torch.distributed as dist

    numpy.random.seed()  # else all workers would draw the same numbers: a new process begins with a seed of its own
    torch.default_generator.seed()
    with contextlib.suppress(ValueError):  # torch read the environment before the fork
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"].split(",")[0]))
    dist.set_debug_level_from_env()
    hardware.full_precision()


def _leave_shared_memory_to_its_maker():
    """Have the resource tracker not track shared memory that a worker only opens, since it would remove it.

    multiprocessing's own children share their parent's tracker; a worker has its own.
    """
    usual, usual_unlink = shared_memory.SharedMemory.__init__, shared_memory.SharedMemory.unlink

    def __init__(self, name=None, create=False, size=0, **settings):
        usual(self, name, create, size, **settings)
        self._is_only_opened = not create and settings.get("track", True)
        if self._is_only_opened:
            resource_tracker.unregister(self._name, "shared_memory")

    def unlink(self):
        if self._is_only_opened:  # unlink also unregisters
            resource_tracker.register(self._name, "shared_memory")
        usual_unlink(self)

    shared_memory.SharedMemory.__init__, shared_memory.SharedMemory.unlink = __init__, unlink


_trackers: list[subprocess.Popen] = []


def _spawn_apart(path, args, fds):
    """Start multiprocessing's resource tracker in a session of its own.

    In the worker's process group it would be killed before it removes the shared memory that others left behind.
    """
    process = subprocess.Popen(args, executable=path, pass_fds=fds, start_new_session=True)
    _trackers.append(process)  # else Popen warns when it is garbage-collected
    return process.pid


def capture(
    world_size: int, placement: hardware.Placement, port: int, debug: bool, gpus: Mapping[str, str]
) -> Surroundings:
    """Return the Surroundings of all ranks; `gpus` are environment variables that select GPUs.

    Raises FileNotFoundError if the notebook's folder has been deleted.
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
    environment.setdefault("KINETO_LOG_LEVEL", "6")  # else torch's profiler reports a missing GPU
    # Else torch 2.11 warns at the first message between two GPUs, in words about its implementation.
    environment.setdefault("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false")
    if placement.device_type == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""  # else DataParallel, for one, would use every GPU
        # Else Accelerate, which finds no GPU, takes each rank for a job of one process.
        environment.setdefault("ACCELERATE_USE_CPU", "true")
    if debug:
        environment["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    sources = cells.sources()
    names = {name: cells.cell_name(name) for name in sources}
    authkey = bytes(multiprocessing.process.current_process().authkey)
    return Surroundings(
        environment,
        current_folder(),
        list(sys.path),
        cores,
        sources,
        names,
        settings.capture(),
        authkey,
        umask=linux.umask(),
        argv=("",) if notebook.is_kernel() else tuple(sys.argv),
    )


def current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise FileNotFoundError(
            "the folder in which this notebook works has been deleted, and workers need one: os.chdir to another"
        ) from None


def read_at_import() -> dict[str, str]:
    """Return the environment variables whose changes take effect only in a new forkserver."""
    return {name: value for name, value in os.environ.items() if _READ_AT_IMPORT.match(name)}


@contextlib.contextmanager
def folder() -> Iterator[str | None]:
    """Make a folder for multiprocessing's sockets, which killed DataLoader workers leave behind; None if it fails.

    It is in /tmp where the usual folder's path is so long that a socket's would exceed what the system allows.
    """
    folder = None
    where = tempfile.gettempdir() if len(os.fsencode(tempfile.gettempdir())) <= _LONGEST else "/tmp"
    with contextlib.suppress(OSError):  # multiprocessing will report it if it needs a folder
        folder = tempfile.mkdtemp(prefix="course-", dir=where)
    try:
        yield folder
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
