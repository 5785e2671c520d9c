"""A debugger in a worker that reads from the notebook: `breakpoint()`, and `torch.distributed.breakpoint(rank)`.

    rank 1: pdb    ── Asked ───▶ supervisor: input() in the notebook
                   ◀── Typed ───

pdb's output goes to the worker's output.
"""

from __future__ import annotations

import bdb
import collections
import datetime
import os
import pdb
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ... import cells
from ...processes import interrupts
from ..forkserver.protocol import Asked, Typed
from . import joining

if TYPE_CHECKING:
    from .listener import Listener

_ELSEWHERE = "breakpoint() opens a prompt only in workers that launch itself starts: on this machine, without on=…"
_NOBODY = "breakpoint() needs keyboard input, but there is none here: remove it, or open the notebook"
_IN_THREAD = "breakpoint() opens a prompt only in the main thread of a worker"


def read_line(rank: int, prompt: str) -> Typed:
    """Read the student's answer to `rank`'s prompt, in the notebook, and return it as Typed. May be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        return Typed(None, "breakpoint() needs keyboard input, but this launch runs in a thread of the notebook")
    try:
        with interrupts.allowed():
            return Typed(input(f"[rank {rank}] {prompt}"), "")
    except EOFError:
        if sys.stdin is not None and sys.stdin.isatty():  # Ctrl-D, which quits a debugger
            return Typed("EOF", "")
        return Typed(None, _NOBODY)
    except RuntimeError:  # nobody can type: nbconvert, nbval, a script without a terminal
        return Typed(None, _NOBODY)


def take_over(listener: Listener | None, send: Callable[[object], None]) -> None:
    """Make a worker's breakpoints and pdb read from the notebook; without a Listener they raise RuntimeError."""

    def hook(*_, **__):
        if os.environ.get("PYTHONBREAKPOINT") != "0":
            _Debugger(listener, send).set_trace(sys._getframe(1))

    class Debugger(_Debugger):
        def __init__(self, *_, **__):
            super().__init__(listener, send)

    sys.breakpointhook, pdb.Pdb = hook, Debugger  # type: ignore[misc]
    dist: Any = sys.modules.get("torch.distributed")  # another interpreter may lack torch
    if dist is not None:
        passed: collections.Counter[tuple[str, int]] = collections.Counter()
        c10d = dist.distributed_c10d

        def open_prompt(rank=0, skip=0, timeout_s=3600):
            """Open a prompt in `rank`, after the first `skip` calls; the other ranks wait until it continues.

            As in torch, `timeout_s` becomes the timeout of all process groups, unless it is None.
            """
            frame = sys._getframe(1)
            here = (frame.f_code.co_filename, frame.f_lineno)
            passed[here] += 1
            if passed[here] <= skip:
                return
            if timeout_s is not None:  # a shorter timeout would end the ranks that wait
                for group in list(c10d._world.pg_map):
                    joining.set_timeout(datetime.timedelta(seconds=timeout_s), group)
            if dist.get_rank() == rank:
                _Debugger(listener, send, then=dist.barrier).set_trace(frame)
            else:
                print(f"waits at torch.distributed.breakpoint({rank}) until rank {rank} continues")
                dist.barrier()

        dist.breakpoint = open_prompt


def forget_breakpoints() -> None:
    """Stop tracing, and drop breakpoints set at a prompt: they must not stop the next request."""
    if isinstance(getattr(sys.gettrace(), "__self__", None), _Debugger):
        sys.settrace(None)
    bdb.Breakpoint.clearBreakpoints()


class _Debugger(pdb.Pdb):
    """A pdb that reads from the notebook; `then()` is called once, when the rank continues after its first prompt."""

    def __init__(self, listener, send, then=None):
        if listener is None:
            raise RuntimeError(_ELSEWHERE)
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(_IN_THREAD)
        super().__init__(stdin=self, stdout=sys.stdout, nosigint=True, readrc=False)
        self.prompt = ""  # else pdb would print it a second time
        self._listener, self._send_message, self._then = listener, send, then
        self._callers, self._refusal = [], ""
        self._was_interrupted = False

    def readline(self):
        """Return a line from the notebook, as pdb's standard input."""
        sys.stdout.flush()
        self._send_message(Asked("(Pdb) "))
        message, _ = self._listener.next()
        if message.refusal:
            self._refusal = message.refusal
            raise bdb.BdbQuit
        return f"{message.line}\n"

    def trace_dispatch(self, frame, event, arg):
        try:
            return super().trace_dispatch(frame, event, arg)
        except bdb.BdbQuit:
            if self._refusal:
                raise RuntimeError(self._refusal) from None
            raise

    def set_trace(self, frame=None, **options):
        frame = frame or sys._getframe(1)
        stack = [frame]
        while stack[-1].f_back is not None:
            stack.append(stack[-1].f_back)
        own = [i for i, caller in enumerate(stack) if cells.is_own(caller.f_code.co_filename)]
        self._callers = stack[own[-1] + 1 :] if own else []  # the launcher's frames
        super().set_trace(frame, **options)
        pdb.Pdb._last_pdb_instance = None  # else Python 3.14 reuses it for the next prompt

    def stop_here(self, frame):
        if any(frame is caller for caller in self._callers):  # the student's function has ended
            self.set_continue()
            return False
        return super().stop_here(frame)

    def _cmdloop(self):
        self.cmdloop()  # pdb's own _cmdloop catches KeyboardInterrupt and asks again

    def _error_exc(self, *args):
        if isinstance(sys.exc_info()[1], KeyboardInterrupt):  # while a typed command ran
            self._was_interrupted = True
            raise
        super()._error_exc(*args)

    def postcmd(self, stop, line):
        if self._was_interrupted:  # some commands, such as p, catch all exceptions
            raise KeyboardInterrupt
        return super().postcmd(stop, line)

    def interaction(self, frame, *args, **kwargs):
        try:
            super().interaction(frame, *args, **kwargs)
        except bdb.BdbQuit:
            if frame is None and self._refusal:  # post_mortem does not pass through trace_dispatch
                raise RuntimeError(self._refusal) from None
            raise
        if self._then is not None and not self.quitting:
            then, self._then = self._then, None
            then()

    def get_stack(self, *args):
        stack, current = super().get_stack(*args)
        own = [i for i, (frame, _) in enumerate(stack) if cells.is_own(frame.f_code.co_filename)]
        first = min(own[:1] + [current])  # the frames before it are the launcher's
        return stack[first:], current - first

    def format_stack_entry(self, frame_lineno, *args, **kwargs):
        name = self.canonic(frame_lineno[0].f_code.co_filename)
        return super().format_stack_entry(frame_lineno, *args, **kwargs).replace(name, cells.cell_name(name), 1)
