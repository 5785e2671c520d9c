"""Run an ordinary function in real worker processes, from a notebook cell.

`launch` forks one process per rank from a warm forkserver, gives them torchrun's environment and a process group,
shows what they print, and brings back what they return. A worker that fails fails the cell, with the line of the cell;
nothing is left behind. `server` and `forkserver` start processes, `worker` runs in each of them, `supervisor` watches
them, `streams` shows their output, `failure` explains what went wrong, `payload` carries functions and results.
"""

import contextlib
import dataclasses
import functools
import inspect
import linecache
import os
import shutil
import socket
import sys
import tempfile
import threading
import time

from .. import hardware
from ..hardware import sharing
from . import interrupts, payload, server
from .failure import WorkerError, describe_running
from .server import shutdown, warm
from .supervisor import Supervisor
from .worker import Surroundings, log

__all__ = ["Run", "WorkerError", "latest_run", "launch", "log", "shutdown", "warm"]


class Run:
    """What came of a launch.

    `results` holds one value per rank (`run[2]` is rank 2's), `logs` what each rank printed, one string per rank,
    `seconds` how long the launch took, `placement` where it ran.
    """

    def __init__(self, name, placement, supervisor):
        self.name, self.placement, self.world_size = name, placement, supervisor.world_size
        self.seconds = None
        self.started = time.monotonic()
        self._supervisor = supervisor

    @property
    def results(self):
        return self._supervisor.results

    @property
    def logs(self):
        return [self._supervisor.output.log(rank) for rank in range(self.world_size)]

    @property
    def metrics(self):
        """A pandas table of what workers logged, also while they run: rank, step, seconds since launch, values."""
        import pandas as pd

        rows = [
            {"rank": rank, "step": step, "seconds": moment - self.started} | values
            for rank, moment, step, values in list(self._supervisor.rows)
        ]
        return pd.DataFrame(rows, columns=None if rows else ["rank", "step", "seconds"])

    def __getitem__(self, rank):
        return self.results[rank]

    def __len__(self):
        return self.world_size

    def __iter__(self):
        return iter(self.results)

    def __repr__(self):
        took = "running" if self.seconds is None else f"{self.seconds:.2f} s"
        return f"<Run of {self.name}: {self.world_size} ranks, {took}>"


_one_at_a_time = threading.Lock()
_announced = set()
_latest = None


def latest_run():
    """Return the Run that is going on in this process, else the last one, else None.

    From another thread this shows a launch while it runs; after an interrupt it has what had arrived until then.
    """
    return _latest


def launch(worker, *args, world_size=None, timeout=120, backend="auto", debug=False, **kwargs):
    """Run `worker(*args, **kwargs)` in `world_size` processes of this machine and return their results as a Run.

    Each process has torchrun's environment (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT)
    and, unless `backend` is None, a process group: NCCL with a GPU for each rank where there are enough (with gloo for
    tensors on the CPU), else gloo.

    Args:
        worker: any callable, also a function, lambda or method defined in a cell.
        world_size: number of ranks. None: one per GPU where there are several, else one per core, 2 to 4.
        timeout: seconds after which all workers are stopped and it is said where each of them was.
        backend: "auto", "gloo", "nccl", or None to leave `init_process_group` to the worker.
        debug: check that ranks agree in the order, shapes and dtypes of collectives (TORCH_DISTRIBUTED_DEBUG=DETAIL).

    Raises WorkerError when a rank failed or time was up, and ValueError or TypeError for arguments that cannot be
    right, before anything is started.
    """
    global _latest
    world_size, placement = _check(worker, args, kwargs, world_size, timeout, backend)
    if os.environ.get("COURSE_IN_WORKER"):
        raise RuntimeError("launch was called inside a worker, which cannot start workers; call it from the notebook")
    with contextlib.ExitStack() as stack:
        call_fd = _dump_call(worker, args, kwargs)
        stack.callback(os.close, call_fd)
        stack.enter_context(interrupts.deferred())
        stack.enter_context(_turn())
        gpus = stack.enter_context(sharing.reserve(_name(worker), world_size, placement.device_type, _pause))
        started = time.monotonic()
        forkserver = warm()
        store = stack.enter_context(_store())
        surroundings_fd = payload.dump(_surroundings(world_size, placement, store.port, debug, gpus))
        stack.callback(os.close, surroundings_fd)
        folder = stack.enter_context(_folder())
        supervisor = Supervisor(forkserver, world_size)
        _latest = run = Run(_name(worker), placement, supervisor)
        run.started = started
        _announce(placement)
        try:
            supervisor.start(folder, surroundings_fd, call_fd)
            supervisor.wait(timeout)
        except KeyboardInterrupt:
            print(*describe_running(supervisor.whereabouts()), sep="\n", file=sys.stderr)
            raise
        except WorkerError as error:
            error.run = run
            raise
        finally:
            if not supervisor.stop():
                shutdown()  # it does not answer: end it, and with it every worker
            run.seconds = time.monotonic() - started
    return run


launch.shutdown = shutdown


@contextlib.contextmanager
def _turn():
    """Wait until no other thread is in a launch."""
    while not _one_at_a_time.acquire(blocking=False):
        _pause(0.1)
    try:
        yield
    finally:
        _one_at_a_time.release()


def _pause(seconds):
    """Wait a moment, in which an interrupt is welcome: nothing has been started yet."""
    with interrupts.allowed():
        time.sleep(seconds)


def _check(worker, args, kwargs, world_size, timeout, backend):
    """Return world_size and placement; raise ValueError or TypeError for what cannot be right."""
    if not callable(worker):
        raise TypeError(
            f"launch needs a function to run in each worker, and was given {_short(worker)}"
            + ("; give it the function itself, without calling it" if worker is None else "")
        )
    if world_size is None:
        world_size = hardware.default_world_size()
    if isinstance(world_size, bool) or not isinstance(world_size, int):
        raise TypeError(f"world_size is the number of workers, a whole number from 1 up, not {_short(world_size)}")
    if world_size < 1:
        raise ValueError(f"world_size is the number of workers, a whole number from 1 up, not {world_size}")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ValueError(f"timeout is a number of seconds above 0, not {_short(timeout)}")
    with contextlib.suppress(ValueError):  # a builtin without a signature
        signature = inspect.signature(worker)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{_name(worker)}{signature} cannot be called with these arguments: {error}") from None
    return world_size, hardware.choose_backend(world_size, backend)


def _name(worker):
    if isinstance(worker, functools.partial):
        return _name(worker.func)
    return getattr(worker, "__name__", type(worker).__name__)


def _short(value):
    text = repr(value)
    return text if len(text) < 60 else f"a {type(value).__name__}"


def _dump_call(worker, args, kwargs):
    try:
        return payload.dump((worker, args, kwargs))
    except Exception as error:
        named = [(f"argument {i}", value) for i, value in enumerate(args, 1)]
        named += [(f"argument {name}", value) for name, value in kwargs.items()]
        with contextlib.suppress(TypeError):
            names = inspect.getclosurevars(worker)
            named += [(f"{name}, which {_name(worker)} uses,", v) for name, v in (names.nonlocals | names.globals).items()]
        for what, value in named:
            try:
                os.close(payload.dump(value))
            except Exception as reason:
                raise TypeError(
                    f"{what} is a {type(value).__name__}, which cannot be sent to another process ({reason}); "
                    "make it inside the worker, or pass plain values and tensors"
                ) from None
        raise TypeError(f"{_name(worker)} cannot be sent to another process: {error}") from None


@contextlib.contextmanager
def _folder():
    """A folder for multiprocessing's sockets, which a DataLoader's killed processes would leave behind, or None."""
    folder = None
    with contextlib.suppress(OSError):  # full, read-only: multiprocessing will say so where it needs one
        folder = tempfile.mkdtemp(prefix="course-")
    try:
        yield folder
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


class _store:
    """The rendezvous: a TCPStore of this launch alone, on a loopback port that the system chose."""

    def __enter__(self):
        from torch.distributed import TCPStore

        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        self.port = listener.getsockname()[1]
        # The store takes the listening socket over: between choosing a port and serving it nobody else can take it.
        self._store = TCPStore(
            "127.0.0.1", self.port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        return self

    def __exit__(self, *_):
        self._store = None


def _surroundings(world_size, placement, port, debug, gpus):
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


def _announce(placement):
    """Say once in each notebook how a number of workers is placed."""
    if placement.note and placement.note not in _announced:
        _announced.add(placement.note)
        print(placement.note)
