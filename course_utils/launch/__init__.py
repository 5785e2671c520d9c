"""Run an ordinary function in real worker processes, from a notebook cell.

`launch` forks one process per rank from a warm forkserver, gives them torchrun's environment and a process group,
shows what they print, and brings back what they return. A worker that fails fails the cell, with the line of the cell;
nothing is left behind. `call` looks at the arguments, `surroundings` prepares what workers need, `server` and
`forkserver` start processes, `worker` runs in each of them, `supervisor` watches them, `streams` shows their output,
`failure` explains what went wrong, `payload` carries functions and results.
"""

import contextlib
import os
import sys
import threading
import time

from ..hardware import sharing
from . import call, interrupts, payload, surroundings
from .failure import WorkerError, describe_running
from .server import shutdown, warm
from .supervisor import Supervisor
from .worker import log

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
_is_announcing = True
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
    world_size, placement = call.check(worker, args, kwargs, world_size, timeout, backend)
    if os.environ.get("COURSE_IN_WORKER"):
        raise RuntimeError("launch was called inside a worker, which cannot start workers; call it from the notebook")
    with contextlib.ExitStack() as stack:
        call_fd = call.dump(worker, args, kwargs)
        stack.callback(os.close, call_fd)
        stack.enter_context(interrupts.deferred())
        stack.enter_context(_turn())
        gpus = stack.enter_context(sharing.reserve(call.worker_name(worker), world_size, placement.device_type, _pause))
        started = time.monotonic()
        forkserver = warm()
        store = stack.enter_context(surroundings.store())
        surroundings_fd = payload.dump(surroundings.describe(world_size, placement, store.port, debug, gpus))
        stack.callback(os.close, surroundings_fd)
        folder = stack.enter_context(surroundings.folder())
        supervisor = Supervisor(forkserver, world_size)
        _latest = run = Run(call.worker_name(worker), placement, supervisor)
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


@contextlib.contextmanager
def unannounced():
    """Launches inside do not say where their workers are: for workers that nobody asked for, a check's for example."""
    global _is_announcing
    before, _is_announcing = _is_announcing, False
    try:
        yield
    finally:
        _is_announcing = before


def _announce(placement):
    """Say once in each notebook how a number of workers is placed."""
    if _is_announcing and placement.note and placement.note not in _announced:
        _announced.add(placement.note)
        print(placement.note)
