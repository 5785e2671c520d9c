"""What runs in each worker process: take the function, run it, hand back what became of it."""

import atexit
import contextlib
import ctypes
import faulthandler
import functools
import itertools
import linecache
import logging
import multiprocessing.process
import multiprocessing.util
import os
import signal
import socket
import sys
import threading
import time
import traceback
import types
from dataclasses import dataclass

from . import payload
from .channel import Channel

STACK_SIGNAL = signal.SIGUSR1


@dataclass(frozen=True)
class Surroundings:
    """What a worker takes over from the notebook besides the call itself."""

    environment: dict  # torchrun's variables included, but for those that differ from rank to rank
    directory: str
    path: list
    sources: dict  # file name of a cell → its text, so that tracebacks and inspect find it
    backend: str | None


@dataclass(frozen=True)
class Report:
    """An exception in a worker, in plain values."""

    type_name: str
    message: str
    traceback: str  # as Python prints it, from the worker function on
    frames: tuple  # (file name, line number, function name), outermost first
    while_doing: str  # what the launcher was doing if the worker function was not running, else ""
    exitcode: int | None = None  # the code given to sys.exit


_MESSAGE_CHARS = 10_000  # of an exception's message; the rest is cut

_channel = None  # to the notebook
_sending = threading.Lock()  # a worker's threads may log
_steps = itertools.count()


def log(**values):
    """Add a row to `run.metrics`: this rank, a step counted from 0 (or `step=`), the time, and `values`.

    Values are numbers, short texts, or tensors of one element. Takes a few microseconds and, but for the wait that
    reading a CUDA tensor means, delays nothing. Does nothing outside `launch`, so that a worker also runs under
    torchrun. Raises ValueError for a tensor of several elements, and for the names `rank` and `seconds`.
    """
    if _channel is None:
        return
    if "rank" in values or "seconds" in values:
        raise ValueError("log(rank=…) and log(seconds=…) are columns that run.metrics has by itself; choose another name")
    step = values.pop("step") if "step" in values else next(_steps)
    for name, value in values.items():
        if not isinstance(value, (int, float, str)):
            values[name] = _plain(name, value)
    _send(("log", time.monotonic(), step, values))


def _plain(name, value):
    try:
        return value.item()  # a tensor, a NumPy scalar
    except (AttributeError, RuntimeError, ValueError):
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        raise ValueError(
            f"log({name}=…) was given a {type(value).__name__}{shape}, but takes one number or text per name; "
            "log its mean, or return it from the worker"
        ) from None


def main(server_pid, rank, folder, channel_fd, output_fd, stacks_fd, surroundings_fd, call_fd):
    """Be rank `rank`, from a fresh fork of the forkserver `server_pid` to the end of the process.

    `folder` is for multiprocessing's temporary files, or None; the descriptors are this process's own.
    """
    global _channel
    from .forkserver import end_with_parent

    pid = os.getpid()

    os.setsid()  # a group of its own: killing the group also ends what the worker has started
    end_with_parent(server_pid)
    _channel = Channel(socket.socket(fileno=channel_fd))
    multiprocessing.process.current_process()._config["tempdir"] = folder
    doing = "starting"
    try:
        _take_streams(output_fd)
        faulthandler.enable(stacks_fd, all_threads=False)
        faulthandler.register(STACK_SIGNAL, stacks_fd, all_threads=False)
        surroundings = payload.load(surroundings_fd)
        _take_surroundings(rank, surroundings)
        doing = "loading the worker function and its arguments"
        worker, args, kwargs = payload.load(call_fd)
        if surroundings.backend is not None:
            doing = "joining the process group"
            _join_process_group(surroundings.backend)
        else:
            _let_it_join_quickly()
        doing = ""
        value = worker(*args, **kwargs)
        if os.getpid() != pid:
            _leave_fork()
        doing = f"sending back its result, a {type(value).__name__}: return plain values or tensors"
        result_fd = payload.dump(value)
        _send(("returned", time.monotonic()), [result_fd])
        os.close(result_fd)
    except BaseException as error:
        if os.getpid() != pid:
            _leave_fork(error)
        if isinstance(error, SystemExit) and not error.code:
            _send(("left", time.monotonic()))  # sys.exit(0): a rank that is done and has nothing to return
        else:
            _send(("raised", time.monotonic(), _report(error, doing)))
            _flush()
            # Stay, so that the other ranks still wait where they are and not report a lost connection: whoever reads
            # the error wants to know what they were waiting for. The launcher kills us all.
            while True:
                signal.pause()
    _leave()


def _send(message, fds=()):
    with _sending:
        _channel.send(message, fds)


def _take_streams(output_fd):
    """Make one pipe of stdout and stderr, for Python, C code and subprocesses, written to line by line."""
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    os.close(output_fd)
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    libc = ctypes.CDLL(None)
    try:
        line_buffered = 1  # _IOLBF
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, line_buffered, 0)
    except ValueError:
        pass  # another C library than glibc; its output then comes when the worker ends


def _take_surroundings(rank, surroundings):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(surroundings.environment, RANK=str(rank), LOCAL_RANK=str(rank))
    os.chdir(surroundings.directory)
    sys.path[:] = surroundings.path
    sys.argv[:] = [""]
    # Not the forkserver's exit handlers: torch's take 80 ms, for things that no worker has begun.
    atexit._clear()
    atexit.register(logging.shutdown)
    atexit.register(multiprocessing.util._exit_function)
    sys.modules["__main__"] = types.ModuleType("__main__")
    for name, text in surroundings.sources.items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)

    import numpy
    import torch
    import torch.distributed as dist

    numpy.random.seed()  # or every worker of every launch would draw the forkserver's numbers
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"].split(",")[0]))  # the environment was read before the fork
    dist.set_debug_level_from_env()


def _join_process_group(backend):
    import torch.distributed as dist

    from ..hardware import rank_device

    with names_from_files():
        if backend == "nccl":
            # gloo beside it, for the tensors that are on the CPU: the same cell works with and without GPUs.
            dist.init_process_group("cpu:gloo,cuda:nccl", device_id=rank_device())
        else:
            dist.init_process_group(backend)


def _let_it_join_quickly():
    """Give the worker, which joins by itself, an `init_process_group` that asks no name server, as ours asks none."""
    import torch.distributed as dist

    join = dist.init_process_group

    @functools.wraps(join)
    def init_process_group(*args, **kwargs):
        elsewhere = len(args) > 1 or kwargs.get("init_method")  # it may name a host that only a name server knows
        with contextlib.nullcontext() if elsewhere else names_from_files():
            return join(*args, **kwargs)

    dist.init_process_group = dist.distributed_c10d.init_process_group = init_process_group


@contextlib.contextmanager
def names_from_files():
    """Look up host names in files only (glibc).

    As it connects, torch asks for the name of 127.0.0.1, for its log. The name server that is asked is slow or silent
    on many a laptop, and a launch then takes 5 s or 10 s.
    """
    configure = getattr(ctypes.CDLL(None), "__nss_configure_lookup", None)
    if configure is None:
        yield
        return
    try:
        with open("/etc/nsswitch.conf") as file:
            usual = next((line.split(":", 1)[1].strip() for line in file if line.startswith("hosts:")), "files dns")
    except OSError:
        usual = "files dns"
    configure(b"hosts", b"files")
    try:
        yield
    finally:
        configure(b"hosts", usual.encode())


def _report(error, doing):
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    if doing:
        trace = None  # the launcher's own frames
    described = traceback.TracebackException(type(error), error, trace)
    is_exit = isinstance(error, SystemExit)
    text = message = _text_of(error)
    if len(text) > _MESSAGE_CHARS:
        message = f"{text[:_MESSAGE_CHARS]}… ({len(text) - _MESSAGE_CHARS:,} more characters)"
    return Report(
        type_name=type(error).__name__,
        message=message,
        traceback="".join(described.format()).replace(text, message),
        frames=tuple((frame.filename, frame.lineno, frame.name) for frame in described.stack),
        while_doing=doing,
        exitcode=(error.code if isinstance(error.code, int) else 1) if is_exit else None,
    )


def _text_of(error):
    try:
        return str(error)
    except Exception:
        return "(its message could not be made)"


def _leave():
    """End as an interpreter would (threads, exit handlers, buffers), but for destructors, which may hang."""
    import torch.distributed as dist

    try:
        if dist.is_initialized() and dist.get_backend() != "gloo":
            dist.destroy_process_group()  # waits for what a GPU still has to do; gloo has nothing to wait for
        threading._shutdown()  # waits for threads that are no daemons
        atexit._run_exitfuncs()
    finally:
        _flush()
        os._exit(0)


def _leave_fork(error=None):
    """End a child that the worker forked itself: it is no rank, and what it returns is nobody's result."""
    if error is not None and not isinstance(error, SystemExit):
        traceback.print_exception(error)
    _flush()
    os._exit(0 if error is None else 1)


def _flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # the worker closed it, or the notebook is gone
    ctypes.CDLL(None).fflush(None)
