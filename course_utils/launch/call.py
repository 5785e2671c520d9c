"""The call that a worker is to make: check it, and pack it for travel."""

import contextlib
import functools
import inspect
import os
import traceback

from .. import cells, hardware
from ..processes import payload
from .watch.failure import LauncherError
from .worker import unsendable

_LAUNCHER = os.path.dirname(__file__) + os.sep


class NotSendable(TypeError):
    """Something cannot be sent to another process: `what`, and `reason`, in the words of the error behind it."""

    def __init__(self, text, what, reason):
        super().__init__(text)
        self.what, self.reason = what, reason


@contextlib.contextmanager
def refused_briefly():
    """Have a notebook show a TypeError or ValueError of this block, which refuses what a student has asked for, in its
    one sentence and with the student's line, without our frames.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        error._render_traceback_ = functools.partial(_refusal, error)  # IPython's hook
        raise


def _refusal(error):
    frames = [tuple(frame)[:3] for frame in traceback.extract_tb(error.__traceback__)]
    place = cells.own_line([frame for frame in frames if not frame[0].startswith(_LAUNCHER)])
    return [f"\x1b[31m{type(error).__name__}\x1b[0m: {error}", *([f"  at {place}"] if place else [])]


def place(worker, args, kwargs, world_size, timeout, backend, on=None):
    """Return world_size and placement; raise ValueError or TypeError for invalid arguments."""
    if not callable(worker):
        raise TypeError(
            f"launch needs a function to run in each worker, and was given {_short(worker)}"
            + ("; pass the function itself, without calling it" if worker is None else "")
        )
    if on is not None and not hasattr(on, "follower"):
        raise TypeError(f"on is None for this machine, Nodes(…) or Slurm(…), not {_short(on)}")
    if isinstance(world_size, bool) or not isinstance(world_size, int | None):
        raise TypeError(f"world_size is the number of workers, a whole number from 1 up, not {_short(world_size)}")
    if world_size is not None and world_size < 1:
        raise ValueError(f"world_size is the number of workers, a whole number from 1 up, not {world_size}")
    require_seconds(timeout)
    if inspect.iscoroutinefunction(worker):
        raise TypeError(
            f"{worker_name(worker)} is an async function, which does nothing when it is called; give launch an "
            f"ordinary one, such as lambda: asyncio.run({worker_name(worker)}(…))"
        )
    with contextlib.suppress(ValueError):  # a builtin without a signature
        signature = inspect.signature(worker)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            hint = "; a worker learns its rank from torch.distributed.get_rank()" if "'rank'" in str(error) else ""
            raise TypeError(
                f"{worker_name(worker)}{signature} cannot be called with these arguments: {error}{hint}"
            ) from None
    if on is None:
        world_size = hardware.default_world_size() if world_size is None else world_size
        return world_size, hardware.choose_backend(world_size, backend)
    world_size = on.world_size(world_size)
    return world_size, on.place(world_size, backend)


def require_seconds(timeout):
    """Raise ValueError for what is no timeout."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ValueError(f"timeout is a number of seconds above 0, not {_short(timeout)}")


def worker_name(worker):
    if isinstance(worker, functools.partial):
        return worker_name(worker.func)
    return getattr(worker, "__name__", type(worker).__name__)


def _short(value):
    text = repr(value)
    return text if len(text) < 60 else f"a {type(value).__name__}"


def dump(worker, args, kwargs, stays_here=False):
    """Return the descriptor of a payload, in which shared memory stays shared if it `stays_here`, on this machine.

    Raises NotSendable, which names what cannot be sent, and LauncherError if there is no room.
    """
    try:
        fd = payload.dump((worker, args, kwargs), keeps_shared=stays_here)
        if not stays_here and (num_bytes := payload.shared_bytes((worker, args, kwargs))):
            print(f"{num_bytes / 1e6:.1f} MB of shared memory or a mapped file were copied: ranks of on=… share none")
        return fd
    except OSError as error:
        raise LauncherError(f"there is no room to hand the arguments to the workers ({error.strerror})") from error
    except Exception as error:
        named = [(f"argument {i}", value) for i, value in enumerate(args, 1)]
        named += [(f"argument {name}", value) for name, value in kwargs.items()]
        with contextlib.suppress(TypeError):
            names = inspect.getclosurevars(worker)
            named += [
                (f"{name}, which {worker_name(worker)} uses,", v)
                for name, v in (names.nonlocals | names.globals).items()
            ]
        for what, value in named:
            if (reason := unsendable.reason_against(value)) is not None:
                raise NotSendable(
                    f"{what} is {unsendable.described(value)}, which cannot be sent to another process ({reason}); "
                    "make it inside the worker, or pass plain values and tensors",
                    what,
                    str(reason),
                ) from None
        name = worker_name(worker)
        raise NotSendable(f"{name} cannot be sent to another process: {error}", name, str(error)) from None
