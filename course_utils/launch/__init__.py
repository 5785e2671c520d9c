"""Run an ordinary function in real worker processes, from a notebook cell.

    notebook (the kernel)                                forkserver                      worker, one per rank
    ────────────────────────────────────────────────────────────────────────────────────────────────────────────
    call: check the function and arguments
    here, place: what workers inherit, and a
    TCPStore on 127.0.0.1 for rendezvous
    handle      ── Fork, Signal, Kill ─────────────────▶ server ── fork ────────────────▶ worker
    supervisor  ◀─ Forked, NotForked, Exited ────────────                                 surroundings.restore
                ◀─ Began, Logged, Returned, Left, Raised ──────────────────────────────── rendezvous.join
    streams     ◀─ one pipe for both output streams ───────────────────────────────────── worker(*args, **kwargs)
    explain: the outcome of each rank → WorkerError

`launch` forks one process per rank from a warm forkserver, gives each torchrun's environment and a process group, shows
what the ranks print, and brings back what they return. If a worker fails, so does the cell, and the error names the
line. No process outlives the launch.

With `on=Nodes(2)` or `on=Slurm(…)` torchrun's agents start the ranks, here or on the nodes of a cluster, and the two
sides exchange messages through files in a folder that both see:

    notebook (the kernel)                                agent, one per node             rank
    ────────────────────────────────────────────────────────────────────────────────────────────────────────────
    beyond.nodes    ── a fork of the forkserver
    beyond.slurm_job ─ a job of Slurm ─────────────────▶ remote ── torchrun ── fork ───▶ worker(*args, **kwargs)
    follower        ◀─ folder: messages, output, result ────────────────────────────────

`persistent`, for `Ranks` and `%%ranks`, keeps workers between cells; `persistent.ranks` has a diagram. `display` shows
ranks while they run, and the variables of a failed one. In a worker, `listener` receives from the notebook, `frames`
describes its stack and variables, `recorder` reads from torch's flight recorder what it has called, and `prompt`
connects debuggers to the notebook. `watch.agreement` compares what ranks have called.

`forkserver.protocol` defines the messages. Functions, arguments and results travel beside them as files in memory
(`processes.payload`).

Why not use what exists? `multiprocessing`'s forkserver runs the script again in every child, and its children survive
a killed kernel (they hold the write end of its alive pipe). `torch.distributed.elastic.multiprocessing` takes functions
from files only, reports failures through files in a folder, and starts an interpreter for each rank, which takes
seconds.

The launcher changes the following in Python and torch. "Without" says what happens if a later version breaks a change.

In a worker, which is a process of our own:
- `atexit._clear`: drops the forkserver's exit handlers, mainly torch's. Without: a worker takes 80 ms longer to end.
- `threading._shutdown`, `atexit._run_exitfuncs`: a worker ends as an interpreter does, but runs no destructors, which
  may hang.
- `multiprocessing.util.spawnv_passfds`: gives the resource tracker a session of its own. Without: shared memory that
  nobody unlinked stays in /dev/shm.
- `sys.breakpointhook`, `pdb.Pdb`, `torch.distributed.breakpoint`: open a debugger's prompt in the notebook. Without:
  the debugger reads from an empty stdin and ends the worker.
- `multiprocessing.process.current_process()._config["tempdir"]`: puts sockets of DataLoaders in the launch's folder.
- `torch.distributed.init_process_group`, also in `device_mesh`: accepts the launch's process group. Without: a torchrun
  script's main() fails at that line.
- `torch.distributed.ProcessGroup.send`, `recv` and `recv_anysource`: note each message. Without: an error does not say
  which rank sends or awaits a message that another neither receives nor sends.
- `torch.distributed.rendezvous._create_c10d_store`: finds the launch's store. Without: MASTER_PORT=12355 hangs.
- `std::set_terminate` of C++: a rank that gloo aborts first says what it had called. Without: an error names only what
  the other ranks had called.
- `MPLBACKEND`, if the notebook's is inline: plt.show() says that a worker has no screen. Without: it prints the name of
  the figure.
- `multiprocessing.spawn.get_preparation_data`: gives a process that a worker spawns the worker's names. Without:
  DataLoader(multiprocessing_context="spawn") over a cell's Dataset fails.
- glibc's `__nss_configure_lookup`, while a worker connects: torch looks up the host name of 127.0.0.1, for its log.
  Without: a launch takes 5 s or 10 s longer if the name server does not answer.

In the notebook, temporarily:
- `__nss_configure_lookup` again, for the 3 ms in which the store is made: other threads cannot reach the name server
  meanwhile.
- SIGINT's handler, during a launch: delays an interrupt until no operation is half done.
- cloudpickle's `_make_skeleton_class` and `_class_setstate`, while a result is loaded. Without: the result's class is
  made a second time, and overwrites the cell's.
"""

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from .. import cells
from ..hardware import sharing
from ..processes import interrupts
from .beyond.nodes import Nodes
from .beyond.slurm_job import Slurm
from .call import Call, NotSendable, refused_briefly, require_count, require_notebook, require_seconds, short
from .display import panel, variables
from .forkserver import handle, rendezvous
from .forkserver.handle import shutdown, warm
from .here import Here
from .persistent import magic
from .persistent.ranks import Ranks
from .place import Place, Start
from .run import Run
from .watch.errors import Interrupted, LauncherError, RanksError, WorkerError, briefly_interrupted, in_whole_words
from .watch.explain import about_debug, interrupted, lines_about
from .watch.outcome import names_of
from .worker import surroundings
from .worker.worker import log

__all__ = [
    "Interrupted",
    "LauncherError",
    "Nodes",
    "NotSendable",
    "Ranks",
    "RanksError",
    "Run",
    "Slurm",
    "WorkerError",
    "latest_run",
    "launch",
    "log",
    "rendezvous",
    "shutdown",
    "warm",
]


_announced: set[str] = set()
_is_announcing = True
_is_patient = False
_going_on: Run | None = None
_latest: Callable[[], Run | None] = lambda: None


def latest_run() -> Run | None:
    """Return the Run in progress in this process, else the last one if a variable or an output refers to it, else None.

    Another thread can inspect a launch with it while it runs. After an interrupt, the Run holds what had arrived, and
    is kept until the next launch. Launches that a check makes do not count.
    """
    return _latest()


def launch(
    worker: Callable[..., object], *args: Any, world_size: int | None = None, timeout: float | None = None,
    backend: str | None = "auto", debug: bool = False, on: Place | None = None, keep_going: bool = False, **kwargs: Any,
) -> Run:  # fmt: skip
    """Run `worker(*args, **kwargs)` in `world_size` processes of this machine and return their results as a Run.

    Each process has torchrun's environment (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT)
    and, unless `backend` is None, a process group: NCCL with a GPU for each rank if there are enough GPUs (with gloo
    for tensors on the CPU), else gloo. A call of `init_process_group` that asks for the same uses this group, so a
    torchrun script's main() runs unchanged. `__main__` holds what the function refers to, under the notebook's names.
    Shared memory stays shared: after `share_memory()` all ranks use the same model.

    Workers take over the notebook's settings: warning filters, print options and error states of NumPy and torch,
    default dtype, deterministic algorithms, matmul precision and anomaly detection. Numbers of threads are their own,
    and so are random numbers, as in any new process: those of torch (on the CPU), NumPy and Python differ from rank to
    rank and from launch to launch until the function sets a seed.

    Args:
        worker: any callable, including a function, lambda or method defined in a cell.
        world_size: number of ranks, up to 64 per core (COURSE_WORKERS_PER_CORE). None: one per GPU if there are
            several, else one per core, 2 to 4.
        timeout: seconds, counted from when all ranks have joined. Then all are stopped; the error says where each was.
            None: 120 seconds in which no rank has logged or printed anything; a Slurm job has its own limit.
        backend: "auto", "gloo", "nccl", or None to leave `init_process_group` to the worker.
        debug: check that ranks agree on the order, shapes and dtypes of collectives (TORCH_DISTRIBUTED_DEBUG=DETAIL).
            Not for DDP on the CPU, which torch 2.15 then ends with a segmentation fault.
        on: None for this machine, `Nodes(2)` for two torchrun agents on it, or `Slurm(nodes=4, gpus_per_node=8)`.
        keep_going: whether the other ranks go on when one fails; the Run's `failures` then says how it failed.

    Before ranks are stopped, by an interrupt or at the timeout, each gets a KeyboardInterrupt and one second, in which
    `except` or `finally` can save something; not those that `on=` starts.

    Raises WorkerError if a rank fails (with `keep_going`: if all do) or at the timeout; ValueError or TypeError for
    invalid arguments, before anything is started; LauncherError if the launcher or the system fails; and Interrupted, a
    KeyboardInterrupt.
    """
    call, on = Call(worker, args, kwargs), Here() if on is None else on
    with briefly_interrupted(f"the launch of {call.name} was interrupted, and none of its workers is still running"):
        return _run(call, on, world_size, timeout, backend, debug, keep_going)


def _run(call, on, world_size, timeout, backend, debug, keep_going):
    with refused_briefly():
        world_size, placement = _placed(call, on, world_size, timeout, backend)
        if keep_going and not on.can_keep_going:
            raise ValueError(
                "keep_going works only for ranks that launch itself starts; those that on=… starts end together"
            )
    require_notebook("launch")
    surroundings.current_folder()  # raises if it has been deleted
    with contextlib.ExitStack() as stack:
        with refused_briefly():
            call_fd = call.dump(shares_memory=on.shares_memory)
        stack.callback(os.close, call_fd)
        warm()  # before waiting for a turn, and before torch is imported here too
        stack.enter_context(interrupts.deferred())
        stack.enter_context(_turn())
        gpus = {}
        if on.is_here:  # a shared node is reserved only for ranks that run on it
            reserved = sharing.reserve(call.name, world_size, placement.device_type, interrupts.sleep)
            gpus = stack.enter_context(reserved)
        started = time.monotonic()
        start = Start(call.name, world_size, placement, call_fd, debug, gpus, keep_going, _is_patient)
        supervisor = stack.enter_context(on.ranks(start))
        run = Run(call, on, placement, supervisor, started)
        _announce(placement)
        _supervise(run, supervisor, on.limit_s if timeout is None else timeout, debug)
    return run


def _placed(call, on, world_size, timeout, backend):
    """Return world_size and placement. Raises ValueError or TypeError for invalid arguments."""
    call.require_callable()
    if not isinstance(on, Place):
        raise TypeError(f"on is None for this machine, Nodes(…) or Slurm(…), not {short(on)}")
    require_count(world_size)
    if timeout is not None:
        require_seconds(timeout)
    call.require_arguments()
    world_size = on.world_size(world_size)
    return world_size, on.place(world_size, backend)


def _supervise(run, supervisor, timeout, debug):
    """Start the workers of `run`, wait for them to end, and clean up in any case."""
    global _going_on
    _going_on, how = run, "failed"
    _remember(weakref.ref(run))  # its results may be large, and go with it
    supervisor.display = panel.of(supervisor, run.name, run.started, run.placement.device_type, not _is_announcing)
    run.history = supervisor.display.history
    try:
        supervisor.start()
        supervisor.wait(timeout)
        how = "finished"
    except KeyboardInterrupt:
        how = "interrupted"
        error = _interrupted(run, *_interrupted_where(run.name, supervisor.whereabouts(), supervisor.begun))
        supervisor.interrupt_ranks()
        raise error from None
    except (LauncherError, WorkerError) as error:
        if isinstance(error, WorkerError) and error.has_quit:
            how = "quit"
            what = f"{run.name} was quit at the prompt of rank {error.rank}"
            others = [outcome for outcome in error.ranks if outcome.rank != error.rank]
            raise _interrupted(run, what, others) from None
        error.run = run
        error.add(about_debug(error) if debug else "")
        if isinstance(error, WorkerError):
            variables.show_below(error)
        raise
    finally:
        supervisor.display.finish(how)
        try:
            has_ended = supervisor.stop()
        finally:
            run.seconds, run.how = time.monotonic() - run.started, how
            supervisor.display = None  # breaks a cycle that would keep large results alive
            _going_on = None
        if not has_ended:
            shutdown()  # the forkserver does not answer: end it and every worker
    if run.failures:
        failed = [outcome for outcome in supervisor.outcomes if outcome.has_failed]
        failed.sort(key=lambda outcome: outcome.blames_another)  # causes first
        print(lines_about(failed, too="")[0], *lines_about(failed)[1:], sep="\n")
    notes = [supervisor.rows.note] if supervisor.rows.note else []
    for note in notes + (run.doubts if _is_announcing else []):
        print(*in_whole_words(note), sep="\n")
    if supervisor.output.trouble is not None:
        raise supervisor.output.trouble


def _interrupted_where(name, outcomes, begun):
    """Return a text that says what was interrupted, and the outcomes of the ranks that had begun."""
    silent = [
        outcome
        for outcome in outcomes
        if not (outcome.rank in begun or outcome.has_failed or outcome.returned or outcome.frames)
    ]
    before = f" before {names_of([outcome.rank for outcome in silent])} had begun" if silent else ""
    return f"{name} was interrupted{before}", [outcome for outcome in outcomes if outcome not in silent]


def _remember(latest):
    """Have `latest_run` return what `latest()` does, unless a check launches: a student asks for a run of their own."""
    global _latest
    if _is_announcing:
        _latest = latest


def _interrupted(run, what, outcomes):
    _remember(lambda: run)  # launch returns nothing that could keep it
    error = interrupted(f"{what}, and all workers were stopped", outcomes)
    error.add("What they had printed, logged and returned:  from course_utils import latest_run; latest_run()")
    error.run = run
    return error


launch.shutdown = shutdown  # type: ignore[attr-defined]
magic.register()


@contextlib.contextmanager
def _turn():
    """Wait until no other thread is in a launch."""
    has_said = False
    while not handle.turn.acquire(blocking=False):
        interrupts.sleep(0.1)
        if not has_said and _going_on is not None and time.monotonic() - _going_on.started > 1:
            print(f"waiting for the launch of {_going_on.name}, which runs in another thread, to end")
            has_said = True
    try:
        yield
    finally:
        handle.turn.release()


@contextlib.contextmanager
def unannounced() -> Iterator[None]:
    """Have launches in this block not print where their workers run; for launches that a check makes."""
    global _is_announcing
    before, _is_announcing = _is_announcing, False
    try:
        yield
    finally:
        _is_announcing = before


@contextlib.contextmanager
def patiently() -> Iterator[None]:
    """Have timeouts in this block not count the time in which ranks waited for cores that other programs used.

    A busy machine then causes no timeout, but a deadlock still does. Only on Linux.
    """
    global _is_patient
    before, _is_patient = _is_patient, True
    try:
        yield
    finally:
        _is_patient = before


def _announce(placement):
    """Print where the workers run, once per notebook for each placement, and which of the student's modules changed."""
    if _is_announcing and placement.note and placement.note not in _announced:
        _announced.add(placement.note)
        print(placement.note)
    for module in cells.changed_modules():
        said = (
            f"{module} has changed since it was imported here: workers import the new version, the notebook still "
            f"has the old one (importlib.reload({module}) updates it)"
        )
        print(*in_whole_words(said), sep="\n")
