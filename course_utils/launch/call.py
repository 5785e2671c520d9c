"""The call that each rank makes: checked, serialised once for all ranks, and kept for `run.export`."""

import contextlib
import functools
import inspect
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .. import cells
from ..processes import payload
from .watch.errors import LauncherError, headed
from .worker import unsendable

# {what the error says: advice} on arguments that do not fit.
_OTHERS = "the number of workers is world_size=…, and everything else goes to your function"
_ADVICE = {
    "'rank'": "a worker learns its rank from torch.distributed.get_rank()",
    "many positional": _OTHERS,
    "unexpected keyword": _OTHERS,
}


class NotSendable(TypeError):
    """Raised if `what` cannot be sent to another process; `reason` is the text of the underlying error."""

    def __init__(self, text: str, what: str, reason: str) -> None:
        super().__init__(text)
        self.what, self.reason = what, reason


@contextlib.contextmanager
def refused_briefly() -> Iterator[None]:
    """Show a TypeError or ValueError of this block as one sentence and the student's line, without a traceback."""
    try:
        yield
    except (TypeError, ValueError) as error:
        error._render_traceback_ = functools.partial(_refusal, error)  # type: ignore[union-attr]  # IPython's hook
        raise


def _refusal(error):
    frames = [tuple(frame)[:3] for frame in traceback.extract_tb(error.__traceback__)]
    place = cells.own_line([frame for frame in frames if not frame[0].startswith(cells.LAUNCHER)])
    head, *others = str(error).split("\n")
    return [*headed(error, head), *others, *([f"  at {place}"] if place else [])]


def require_notebook(what: str) -> None:
    """Raise RuntimeError if `what`, which starts workers, is called inside one."""
    if os.environ.get("COURSE_IN_WORKER"):
        raise RuntimeError(f"{what} was called inside a worker, which cannot start workers; call it from the notebook")


def require_seconds(timeout: object) -> None:
    """Raise ValueError unless `timeout` is a number of seconds above 0."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ValueError(f"timeout is a number of seconds above 0, not {short(timeout)}")


def require_count(world_size: object) -> None:
    """Raise TypeError or ValueError unless `world_size` is a whole number from 1 up, or None."""
    what = "world_size is the number of workers, a whole number from 1 up"
    if isinstance(world_size, bool) or not isinstance(world_size, int | None):
        raise TypeError(f"{what}, not {short(world_size)}")
    if world_size is not None and world_size < 1:
        raise ValueError(f"{what}, not {world_size}")


def short(value: object) -> str:
    """Return `repr(value)`, without an address, if it is short, else its type, as in `a Tensor`."""
    text = cells.without_addresses(repr(value))
    return text if len(text) < 60 else f"a {type(value).__name__}"


def worker_name(worker: object) -> str:
    """Return the name of a callable for messages."""
    if isinstance(worker, functools.partial):
        return worker_name(worker.func)
    return getattr(worker, "__name__", type(worker).__name__)


@dataclass(frozen=True)
class Call:
    """The call `worker(*args, **kwargs)`, which each rank makes."""

    worker: Callable[..., object]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return worker_name(self.worker)

    def require_callable(self) -> None:
        """Raise TypeError unless the worker is callable."""
        if not callable(self.worker):
            raise TypeError(
                f"launch needs a function to run in each worker, and was given {short(self.worker)}"
                + ("; pass the function itself, without calling it" if self.worker is None else "")
            )

    def require_arguments(self) -> None:
        """Raise TypeError if the function does not take these arguments, or is async."""
        if inspect.iscoroutinefunction(self.worker):
            raise TypeError(
                f"{self.name} is an async function, which does nothing when it is called; give launch an "
                f"ordinary one, such as lambda: asyncio.run({self.name}(…))"
            )
        with contextlib.suppress(ValueError):  # a builtin without a signature
            signature = inspect.signature(self.worker)
            try:
                signature.bind(*self.args, **self.kwargs)
            except TypeError as error:
                hint = next((f"; {advice}" for word, advice in _ADVICE.items() if word in str(error)), "")
                raise TypeError(
                    f"{self.name}{signature} cannot be called with these arguments: {error}{hint}"
                ) from None

    def dump(self, shares_memory: bool = False) -> int:
        """Return the file descriptor of a payload; with `shares_memory`, shared memory stays shared.

        Raises NotSendable, which names what cannot be sent, and LauncherError if there is no room.
        """
        content = self.worker, self.args, self.kwargs
        try:
            fd = payload.dump(content, keeps_shared=shares_memory)
            if not shares_memory and (num_bytes := payload.shared_bytes(content)):
                print(
                    f"{num_bytes / 1e6:.1f} MB of shared memory or a mapped file were copied: ranks of on=… share none"
                )
            return fd
        except OSError as error:
            raise LauncherError(f"there is no room to hand the arguments to the workers ({error.strerror})") from error
        except Exception as error:
            raise self._not_sendable(error) from None

    def _not_sendable(self, error):
        """Return a NotSendable that names the argument or global that caused `error`, else the function itself."""
        for what, value in self._parts():
            if (reason := unsendable.reason_against(value)) is not None:
                return NotSendable(
                    f"{what} is {unsendable.described(value)}, which cannot be sent to another process ({reason}); "
                    "make it inside the worker, or pass plain values and tensors",
                    what,
                    str(reason),
                )
        return NotSendable(f"{self.name} cannot be sent to another process: {error}", self.name, str(error))

    def _parts(self):
        """Yield (description, value) of each argument and of each name that the function refers to."""
        yield from ((f"argument {i}", value) for i, value in enumerate(self.args, 1))
        yield from ((f"argument {name}", value) for name, value in self.kwargs.items())
        function = self.worker
        while isinstance(function, functools.partial):
            yield from ((f"argument {i} of the partial", value) for i, value in enumerate(function.args, 1))
            yield from ((f"argument {name} of the partial", value) for name, value in function.keywords.items())
            function = function.func
        if inspect.ismethod(function):
            yield f"the object of which {self.name} is a method", function.__self__
            function = function.__func__
        elif not inspect.isfunction(function):
            yield "the function", function
        named = getattr(function, "__kwdefaults__", None) or {}
        defaults = *(getattr(function, "__defaults__", None) or ()), *named.values()
        yield from ((f"a default of {self.name}", value) for value in defaults)
        with contextlib.suppress(TypeError):
            used = inspect.getclosurevars(function)
            yield from ((f"{name}, which {self.name} uses,", v) for name, v in (used.nonlocals | used.globals).items())
