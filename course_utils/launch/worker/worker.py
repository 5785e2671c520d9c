"""What runs in each worker process: load the function, call it, send back its result or exception."""

from __future__ import annotations

import bdb
import contextlib
import ctypes
import faulthandler
import functools
import itertools
import multiprocessing.process
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ... import cells, hardware
from ...processes import ending, linux, payload
from ..forkserver import rendezvous
from ..forkserver.protocol import Began, Channel, Left, Logged, Phase, Raised, Reached, Report, Returned, WorkerFds
from . import (
    carried,
    consequence,
    frames,
    interpreter,
    last_words,
    prompt,
    recorder,
    settings,
    surroundings,
    unsendable,
)
from .listener import Listener

if TYPE_CHECKING:
    from ..beyond.folder import Writer

# A signal that no program uses. SIGUSR1 and 2 are left to students, who may save a checkpoint on them, as on Slurm.
STACK_SIGNAL = signal.SIGRTMAX - 3 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR2
_TEXT_CHARS = 1_000  # of a logged text
_MESSAGE_CHARS = 10_000  # of an exception's message; the rest is cut
_MOST_LINES = 1_000  # kept at the beginning of a long traceback, and at its end

_Clock = Callable[[], float]
_Join = Callable[[], object]  # joins the process group
_channel: Any = None  # to the notebook
listener: Listener | None = None  # receives from the notebook while the worker runs
_now = time.monotonic
_sending = threading.Lock()  # a worker's threads may log
_steps = itertools.count()


def log(**values: Any) -> None:
    """Add a row to `run.metrics`: this rank, a step counted from 0 (or `step=`), the time, and `values`.

    Values are numbers, short texts, or tensors of one element. A notebook shows the latest values while the launch
    runs. `total=` is the number of steps, `samples=` the number of samples in this step. Takes a few microseconds, but
    reading a CUDA tensor waits for the GPU. Does nothing outside `launch`, so that a worker also runs under torchrun.
    Raises ValueError for a tensor of several elements and for the names `rank` and `seconds`, and RuntimeError in a
    process that a rank has forked, such as a DataLoader's worker.
    """
    if _channel is None:
        return
    if "rank" in values or "seconds" in values:
        raise ValueError(
            "log(rank=…) and log(seconds=…) are columns that run.metrics has by itself; choose another name"
        )
    step = _plain("step", values.pop("step")) if "step" in values else next(_steps)
    for name, value in values.items():
        if type(value) not in (int, float, bool):
            values[name] = _plain(name, value)
    send(Logged(_now(), step, values))


def _plain(name, value):
    """Return `value` as a built-in number or text: the notebook may not have the value's class."""
    if isinstance(value, str):
        return str(value) if len(value) <= _TEXT_CHARS else f"{value[:_TEXT_CHARS]}… ({len(value):,} characters)"
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    if hasattr(value, "placements"):  # a DTensor, of which this rank may hold only a part
        if not all(placement.is_replicate() for placement in value.placements):
            raise ValueError(
                f"log({name}=…) was given a DTensor of which each rank holds a part ({value.placements[0]}); "
                "log its .full_tensor(), which all ranks must ask for"
            )
        value = value.to_local()
    try:
        return value.item()  # a tensor or NumPy scalar
    except (AttributeError, RuntimeError, ValueError):
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        raise ValueError(
            f"log({name}=…) was given a {type(value).__name__}{shape}, but takes one number or text per name; "
            "log its mean, or return it from the worker"
        ) from None


def main(server_pid: int, rank: int, folder: str | None, fds: WorkerFds) -> None:
    """Run as rank `rank`, in a new fork of the forkserver `server_pid`, to the end of the process.

    `folder` is for multiprocessing's temporary files, or None; `fds` are this process's own.
    """
    os.setsid()  # a process group of its own, so that its children can be killed with it
    linux.end_with_parent(server_pid)
    linux.name_process(f"rank {rank}")

    def surround():
        taken, backend = payload.load(fds.surroundings)
        if taken.python is not None:
            interpreter.become(taken.python, rank, folder, fds)
        taken.restore({"RANK": str(rank), "LOCAL_RANK": str(rank)})
        surroundings.begin_anew(folder)
        settings.restore(taken.settings)
        if taken.authkey is not None:
            multiprocessing.process.current_process().authkey = taken.authkey
        join = rendezvous.prepare()
        return lambda: join(backend)

    serve(Channel(socket.socket(fileno=fds.channel)), fds, surround)


def go_on(arguments: Sequence[str]) -> None:
    """Continue as a rank after execve to this interpreter, to the end of the process."""
    *numbers, folder = arguments
    rank, *own = map(int, numbers)
    fds = WorkerFds(*own)
    for fd in own:
        os.set_inheritable(fd, False)
    linux.name_process(f"rank {rank}")

    def surround():
        taken, _ = payload.load(fds.surroundings)
        taken.restore({"RANK": str(rank), "LOCAL_RANK": str(rank)})
        multiprocessing.process.current_process()._config["tempdir"] = folder or None
        return lambda: None  # its framework joins the other ranks in its own way

    serve(Channel(socket.socket(fileno=fds.channel)), fds, surround)


def serve(
    channel: Channel | Writer, fds: WorkerFds, surround: Callable[[], _Join], now: _Clock = time.monotonic
) -> None:
    """Run as a rank to the end of this process: restore the surroundings, load and make the call, send the outcome.

    `surround()` restores the surroundings and returns the function that joins the process group. `now` is the clock for
    messages. Of `fds` the output, stacks and call are used. After an exception the process waits until it is killed.
    """
    global _channel, _now, listener
    _channel, _now = channel, now
    os.register_at_fork(after_in_child=_be_no_rank)
    pid = os.getpid()
    doing, is_ours = "starting", True
    try:
        _take_streams(fds.output)
        faulthandler.enable(fds.stacks, all_threads=False)
        faulthandler.register(STACK_SIGNAL, fds.stacks, all_threads=False)
        join = surround()
        listener = Listener(channel, send) if hasattr(channel, "receive") else None
        prompt.take_over(listener if isinstance(channel, Channel) else None, send)
        last_words.before_an_abort(send)
        doing, is_ours = "loading the worker function and its arguments", False
        worker, args, kwargs = payload.load(fds.call, sys.modules["__main__"].__dict__)
        doing, is_ours = "joining the process group", True
        join()
        send(Began())
        doing, is_ours = "", False
        value = worker(*args, **kwargs)
        if os.getpid() != pid:
            leave_fork()
        doing = "waiting for what its GPU still had to do"
        wait_for_gpus()
        doing = functools.partial(unsendable.sending_back, value)  # type: ignore[assignment]
        result_fd = payload.dump(value)
        send(Returned(now(), recorder.at_end()), [result_fd])
        os.close(result_fd)
    except BaseException as error:
        if os.getpid() != pid:
            leave_fork(error)
        if isinstance(error, SystemExit) and not error.code:
            send(Left(now(), recorder.at_end(), frames.of_traceback(error.__traceback__)))
        else:
            send(Raised(now(), report_of(error, doing, is_ours), recorder.now(error)))
            ending.flush()
            # Stay alive until the launcher kills all ranks: otherwise the others would fail with a lost connection, and
            # the error could not say what they were waiting for.
            while True:
                signal.pause()
    _leave()


def tell_why_not(channel: Channel | Writer, error: BaseException, now: _Clock = time.monotonic) -> None:
    """Send an `error` that was raised before `serve` could report it; else only an exit code would be known."""
    with contextlib.suppress(OSError):  # the notebook has ended, or its folder is full
        channel.send(Raised(now(), report_of(error, "starting", is_ours=True)))


def wait_for_gpus() -> None:
    """Synchronise the GPUs in use; send Reached(WAITS_FOR_GPU) before, since that may never end."""
    if hardware.gpus_in_use():
        send(Reached(Phase.WAITS_FOR_GPU))
        hardware.wait_for_gpus()


def send(message: object, fds: Sequence[int] = ()) -> None:
    with _sending:
        _channel.send(message, fds)


def now() -> float:
    """Return the time by this worker's clock for messages."""
    return _now()


def _be_no_rank():
    """Detach a process that a rank has forked from the channel: its messages would mix with the rank's."""
    global _channel, _sending
    _channel, _sending = _NoChannel(), threading.Lock()  # a thread of the rank may hold the old lock


class _NoChannel:
    def send(self, message, fds=()):
        raise RuntimeError(
            "log() and breakpoint() work in a rank alone, and this process was started by one, "
            "as DataLoader(num_workers=…) does: use them in the worker function, or set num_workers=0"
        )


def _take_streams(output_fd: int) -> None:
    """Send stdout and stderr of Python, C code and subprocesses to one pipe, with line buffering."""
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    os.close(output_fd)
    streams: Any = sys  # typeshed declares __stdout__ and __stderr__ final
    sys.stdout = streams.__stdout__ = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = streams.__stderr__ = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    libc = ctypes.CDLL(None)
    with contextlib.suppress(ValueError):  # not glibc: C output then comes when the worker ends
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, 0)  # 1 is _IOLBF, line buffering


def report_of(error: BaseException, doing: str | Callable[[], str], is_ours: bool) -> Report:
    """Return the Report of an exception.

    `doing` is what the launcher was doing, "" if the worker function was running; or a function that returns that text.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(cells.LAUNCHER):
        trace = trace.tb_next
    trace = cells.from_own(trace)  # without frames of the launcher or a check
    if doing and not (trace is not None and cells.is_own(trace.tb_frame.f_code.co_filename)):
        trace = None  # what the launcher was doing says more than its frames; an imported module's say where
    kind, text, stack = type(error), _text_of(error), frames.of_traceback(trace)
    whole = "".join(traceback.TracebackException(kind, error, trace).format())
    if (over := carried.of(error)) is not None:  # what torch's code did with it here tells nobody anything
        kind, text, own = over.kind, over.message, cells.innermost(stack)
        stack = stack[: None if own is None else own + 1]
        whole = over.below("".join(traceback.format_tb(trace, limit=len(stack))))
        stack += over.frames
    message = text
    if len(text) > _MESSAGE_CHARS:
        message = f"{text[:_MESSAGE_CHARS]}… ({len(text) - _MESSAGE_CHARS:,} more characters)"
    return Report(
        type_name=kind.__name__,
        type_module=kind.__module__,
        message=message,
        traceback=_shortened(whole.replace(text, message)),
        frames=stack,
        while_doing=doing if isinstance(doing, str) else doing(),
        exitcode=_exit_code(error.code) if isinstance(error, SystemExit) else None,
        is_ours=is_ours,
        consequence=consequence.of(error),
        has_quit=isinstance(error, bdb.BdbQuit),
    )


def _shortened(text):
    """Shorten a traceback's long lines and drop its middle: causes, notes and exception groups may be very long."""
    lines = [
        line if len(line) <= 2 * _MESSAGE_CHARS
        else f"{line[:_MESSAGE_CHARS]}… ({len(line) - _MESSAGE_CHARS:,} more characters)"
        for line in text.splitlines()
    ]  # fmt: skip
    if len(lines) > _MESSAGE_CHARS + 2 * _MOST_LINES:  # a message may have _MESSAGE_CHARS lines
        left_out = f"… ({len(lines) - 2 * _MOST_LINES:,} more lines)"
        lines = [*lines[:_MOST_LINES], left_out, *lines[-_MOST_LINES:]]
    return "\n".join(lines)


def _text_of(error):
    try:
        return "".join(str(error))  # a plain str, even if __str__ returns a subclass
    except Exception:
        return "(its message could not be made)"


def _exit_code(code):
    """Return the exit code that Python uses for the argument of sys.exit."""
    return 0 if code is None else code if isinstance(code, int) else 1


def _leave():
    dist = sys.modules.get("torch.distributed")  # another interpreter may lack torch
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        send(Reached(Phase.WAITS_FOR_THREADS))
    try:
        if dist is not None and dist.is_initialized() and dist.get_backend() != "gloo":
            dist.destroy_process_group()  # another GPU may still read from this GPU's memory
    finally:
        ending.leave()


def leave_fork(error: BaseException | None = None) -> NoReturn:
    """End a child that the worker function forked, and that came back from it: it must send no result."""
    if error is not None and not isinstance(error, SystemExit):
        traceback.print_exception(error)
    ending.flush()
    os._exit(0 if error is None else 1)
