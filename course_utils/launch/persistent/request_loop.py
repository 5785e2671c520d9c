"""The loop of a persistent worker, which serves one request after another.

Its variables live in `__main__`, as a notebook's do in its kernel.
"""

import ast
import functools
import os
import signal
import sys
from typing import Any

from ... import cells, hardware
from ...processes import ending, payload
from ..forkserver import rendezvous
from ..forkserver.protocol import Answered, Ask
from ..worker import prompt, unsendable, worker

_SHOWN_CHARS = 10_000  # of the value of a cell's last expression
_is_busy = False
_given: dict[str, Any] = {}  # {name: value} in `__main__` that came with the notebook's functions


def serve() -> None:
    """Answer every Ask, as a persistent rank, until the notebook has ended."""
    import torch
    import torch.distributed as dist

    signal.signal(signal.SIGINT, _interrupt)
    names = sys.modules["__main__"].__dict__
    names |= {"rank": dist.get_rank(), "world_size": dist.get_world_size(), "torch": torch, "dist": dist}
    listener = worker.listener
    assert listener is not None
    while True:
        try:
            message, fds = listener.next()
        except EOFError:
            return
        if isinstance(message, Ask):  # else a line typed for a debugger that was interrupted
            _answer(message, *fds)


def _interrupt(*_):
    """Raise KeyboardInterrupt if something is running; otherwise ignore the interrupt."""
    global _is_busy
    if _is_busy:
        _is_busy = False
        raise KeyboardInterrupt


def _answer(ask, request_fd):
    global _is_busy
    pid, report, fds = os.getpid(), None, []
    doing = "loading the function and its arguments"
    try:
        try:
            _is_busy = ask.can_be_interrupted
            function, args, kwargs = payload.load(request_fd, names := {})
            _know(names)
            doing = ""
            value = function(*args, **kwargs)
            doing = "waiting for what its GPU still had to do"
            worker.wait_for_gpus()
            doing = functools.partial(unsendable.sending_back, value)
            if os.getpid() == pid:
                fds = [payload.dump(value)]
        finally:
            _is_busy = False
            prompt.forget_breakpoints()
    except BaseException as error:
        if os.getpid() != pid:
            worker.leave_fork(error)
        report = worker.report_of(error, doing, is_ours=False)
    if os.getpid() != pid:
        worker.leave_fork()
    ending.flush()
    is_well = report is None or hardware.gpus_are_well()
    worker.send(Answered(ask.number, worker.now(), report, rendezvous.collectives(), is_well), fds)
    for fd in [request_fd, *fds]:
        os.close(fd)


def _know(names):
    """Put a request's functions and classes into `__main__`, where pickle looks, but keep the rank's own variables."""
    main = sys.modules["__main__"].__dict__
    for name, value in names.items():
        if getattr(value, "__module__", None) == "__main__" and callable(value):
            if name not in main or name in _given and main[name] is _given[name]:
                main[name] = _given[name] = value


def rejoin(port: int, backend: str) -> None:
    """Leave the process group, some of whose members have ended, and join a new one."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    dist.distributed_c10d._world.group_count = 0  # as in a new process, since it names the groups
    os.environ["MASTER_PORT"] = str(port)
    rendezvous.join(backend)


def run_cell(source: str, file: str, name: str) -> str | None:
    """Run a cell in this rank's `__main__`, and return the value of its last expression, as text, or None.

    `file` is the file name in its code objects, `name` its name in messages.
    """
    cells.know(file, source, name)
    body = ast.parse(source, file).body
    names = sys.modules["__main__"].__dict__
    is_expression = bool(body) and isinstance(body[-1], ast.Expr)
    last = ast.Expression(body.pop().value) if is_expression else None  # type: ignore[attr-defined]
    exec(compile(ast.Module(body, []), file, "exec"), names)
    value = None if last is None else eval(compile(last, file, "eval"), names)
    if value is None or source.rstrip().endswith(";"):  # as in a notebook
        return None
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}… ({len(text):,} characters)"


def evaluate(expression: str) -> Any:
    """Evaluate an expression in this rank's `__main__`."""
    return eval(expression, sys.modules["__main__"].__dict__)


def assign(name: str, value: object) -> None:
    """Set a variable in this rank's `__main__`."""
    setattr(sys.modules["__main__"], name, value)
