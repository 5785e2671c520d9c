"""What runs in each worker process: take the function, run it, hand back what became of it."""

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
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ... import cells, hardware
from ...processes import ending, linux, payload
from ..forkserver import rendezvous
from ..forkserver.protocol import Began, Channel, Left, Logged, Phase, Raised, Reached, Report, Returned, WorkerFds
from . import consequence, frames, interpreter, prompt, settings, surroundings, unsendable
from .listener import Listener

if TYPE_CHECKING:
    from ..beyond.folder import FolderChannel

# One that no program has a use for: SIGUSR1 and 2 are a student's, who may save a checkpoint there, as on Slurm.
STACK_SIGNAL = signal.SIGRTMAX - 3 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR2
_TEXT_CHARS = 1_000  # of a logged text
_MESSAGE_CHARS = 10_000  # of an exception's message; the rest is cut
_MOST_LINES = 1_000  # at the beginning of a long traceback, and at its end

_Clock = Callable[[], float]
_Join = Callable[[], object]  # how a rank joins the process group
_LAUNCHER = str(Path(__file__).parents[1]) + os.sep
_channel: Any = None  # to the notebook
listener: Listener | None = None  # hears what it says while the worker runs
_now = time.monotonic
_sending = threading.Lock()  # a worker's threads may log
_steps = itertools.count()


def log(**values: Any) -> None:
    """Add a row to `run.metrics`: this rank, a step counted from 0 (or `step=`), the time, and `values`.

    Values are numbers, short texts, or tensors of one element. A notebook shows the latest of them while the launch
    runs; `total=` says how many steps there will be, and `samples=` how many samples this one has taken. Takes a few
    microseconds and, but for the wait that reading a CUDA tensor means, delays nothing. Does nothing outside `launch`,
    so that a worker also runs under torchrun. Raises ValueError for a tensor of several elements, and for the names
    `rank` and `seconds`, and RuntimeError in a process that a rank has forked, such as a DataLoader's worker.
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
    """`value` as one of Python's own numbers or texts: the notebook may not know the class that it has here."""
    if isinstance(value, str):
        return str(value) if len(value) <= _TEXT_CHARS else f"{value[:_TEXT_CHARS]}… ({len(value):,} characters)"
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    if hasattr(value, "placements"):  # a DTensor, of which this rank may hold a part
        if not all(placement.is_replicate() for placement in value.placements):
            raise ValueError(
                f"log({name}=…) was given a DTensor of which each rank holds a part ({value.placements[0]}); "
                "log its .full_tensor(), which all ranks must ask for"
            )
        value = value.to_local()
    try:
        return value.item()  # a tensor, a NumPy scalar
    except (AttributeError, RuntimeError, ValueError):
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        raise ValueError(
            f"log({name}=…) was given a {type(value).__name__}{shape}, but takes one number or text per name; "
            "log its mean, or return it from the worker"
        ) from None


def main(server_pid: int, rank: int, folder: str | None, fds: WorkerFds) -> None:
    """Be rank `rank`, from a fresh fork of the forkserver `server_pid` to the end of the process.

    `folder` is for multiprocessing's temporary files, or None; the WorkerFds `fds` are this process's own.
    """
    os.setsid()  # a group of its own: killing the group also ends what the worker has started
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
    """Be the rank that has become this interpreter, to the end of the process."""
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
        return lambda: None  # its framework has a way of its own to join the others

    serve(Channel(socket.socket(fileno=fds.channel)), fds, surround)


def serve(
    channel: Channel | FolderChannel, fds: WorkerFds, surround: Callable[[], _Join], now: _Clock = time.monotonic
) -> None:
    """Be a rank to the end of this process: take over its surroundings, load the call, make it, send back what became
    of it.

    `surround()` does the first and returns how to join the process group, a function; `now` is the clock of the
    messages. Of the WorkerFds `fds` the output, stacks and call are used. A rank that has raised stays until it is
    killed.
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
        listener = Listener(channel, send) if isinstance(channel, Channel) else None  # not over files
        prompt.take_over(listener, send)
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
        send(Returned(now()), [result_fd])
        os.close(result_fd)
    except BaseException as error:
        if os.getpid() != pid:
            leave_fork(error)
        if isinstance(error, SystemExit) and not error.code:
            send(Left(now()))
        else:
            send(Raised(now(), report_of(error, doing, is_ours)))
            ending.flush()
            # Stay, so that the other ranks still wait where they are and not report a lost connection: whoever reads
            # the error wants to know what they were waiting for. The launcher kills us all.
            while True:
                signal.pause()
    _leave()


def tell_why_not(channel: Channel | FolderChannel, error: BaseException, now: _Clock = time.monotonic) -> None:
    """Send `error`, which kept this process from being a rank at all; without it only an exit code would be known."""
    with contextlib.suppress(OSError):  # the notebook is gone, or its folder is full
        channel.send(Raised(now(), report_of(error, "starting", is_ours=True)))


def wait_for_gpus() -> None:
    """Wait until the GPUs in use have done all that was asked of them, and say so before, should that never end."""
    if hardware.gpus_in_use():
        send(Reached(Phase.WAITS_FOR_GPU))
        hardware.wait_for_gpus()


def send(message: object, fds: Sequence[int] = ()) -> None:
    with _sending:
        _channel.send(message, fds)


def _be_no_rank():
    """In a process that a rank has forked: its messages would mix with the rank's, and it hears no answer."""
    global _channel, _sending
    _channel, _sending = _NoChannel(), threading.Lock()  # one that no thread of the rank holds


class _NoChannel:
    def send(self, message, fds=()):
        raise RuntimeError(
            "log() and breakpoint() work in a rank alone, and this process was started by one, "
            "as DataLoader(num_workers=…) does: use them in the worker function, or set num_workers=0"
        )


def _take_streams(output_fd: int) -> None:
    """Make one pipe of stdout and stderr, for Python, C code and subprocesses, written to line by line."""
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    os.close(output_fd)
    streams: Any = sys  # whose __stdout__ and __stderr__ are declared final
    sys.stdout = streams.__stdout__ = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = streams.__stderr__ = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    libc = ctypes.CDLL(None)
    with contextlib.suppress(ValueError):  # another C library than glibc; its output then comes when the worker ends
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, 0)  # _IOLBF, line by line


def report_of(error: BaseException, doing: str | Callable[[], str], is_ours: bool) -> Report:
    """The Report of an exception. `doing` says what the launcher was doing, "" if the worker function was running; or
    is a function that says so.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_LAUNCHER):
        trace = trace.tb_next
    trace = None if doing else cells.from_own(trace)  # what leads there, the launcher's or a check's, teaches nothing
    described = traceback.TracebackException(type(error), error, trace)
    text = message = _text_of(error)
    if len(text) > _MESSAGE_CHARS:
        message = f"{text[:_MESSAGE_CHARS]}… ({len(text) - _MESSAGE_CHARS:,} more characters)"
    return Report(
        type_name=type(error).__name__,
        type_module=type(error).__module__,
        message=message,
        traceback=_shortened("".join(described.format()).replace(text, message)),
        frames=frames.of_traceback(trace),
        while_doing=doing if isinstance(doing, str) else doing(),
        exitcode=_exit_code(error.code) if isinstance(error, SystemExit) else None,
        is_ours=is_ours,
        consequence=consequence.of(error),
        has_quit=isinstance(error, bdb.BdbQuit),
    )


def _shortened(text):
    """A traceback in which messages, also of causes, notes and the members of a group, are no longer than is read."""
    lines = [
        line if len(line) <= 2 * _MESSAGE_CHARS
        else f"{line[:_MESSAGE_CHARS]}… ({len(line) - _MESSAGE_CHARS:,} more characters)"
        for line in text.splitlines()
    ]  # fmt: skip
    if len(lines) > _MESSAGE_CHARS + 2 * _MOST_LINES:  # the exception's own message may have that many
        left_out = f"… ({len(lines) - 2 * _MOST_LINES:,} more lines)"
        lines = [*lines[:_MOST_LINES], left_out, *lines[-_MOST_LINES:]]
    return "\n".join(lines)


def _text_of(error):
    try:
        return "".join(str(error))  # a plain str, whatever class __str__ returns
    except Exception:
        return "(its message could not be made)"


def _exit_code(code):
    """The exit code that Python makes of what sys.exit was given."""
    return 0 if code is None else code if isinstance(code, int) else 1


def _leave():
    dist = sys.modules.get("torch.distributed")  # another interpreter may have none
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        send(Reached(Phase.WAITS_FOR_THREADS))
    try:
        if dist is not None and dist.is_initialized() and dist.get_backend() != "gloo":
            dist.destroy_process_group()  # a GPU may still read from this one's memory; gloo has nothing to wait for
    finally:
        ending.leave()


def leave_fork(error: BaseException | None = None) -> NoReturn:
    """End a child that the worker forked itself: it is no rank, and what it returns is nobody's result."""
    if error is not None and not isinstance(error, SystemExit):
        traceback.print_exception(error)
    ending.flush()
    os._exit(0 if error is None else 1)
