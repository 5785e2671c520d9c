"""Recognises an exception that torch has carried over from another process or thread, such as a DataLoader's.

torch raises it again with its whole traceback as the message, at the line that asked for a batch. Only that text and
its class have come over.
"""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

from ..forkserver.protocol import Frame

_HEAD = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)$', re.MULTILINE)


class Carried(NamedTuple):
    kind: type[BaseException]
    message: str
    where: str  # as in `in DataLoader worker process 1`
    traceback: str  # without its first line
    frames: tuple[Frame, ...]  # in that process or thread, outermost first

    def below(self, above: str) -> str:
        """Return the traceback below that of this thread, `above`."""
        return f"{_HEAD}{above}{self.where[:1].upper()}{self.where[1:]}:\n{self.traceback}"


def of(error: BaseException) -> Carried | None:
    """Return what `error` was where it was raised first, or None if that was here."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    torch = sys.modules.get("torch")
    if trace is None or torch is None:
        return None
    wrapper = trace.tb_frame.f_locals.get("self")
    if not isinstance(wrapper, torch._utils.ExceptionWrapper):
        return None
    kind, text = wrapper.exc_type, wrapper.exc_msg.removeprefix(_HEAD)
    stack = text.rpartition(_HEAD)[2]  # the last of those that are "During handling of" or "the direct cause of" it
    _, is_there, message = stack.partition(f"\n{_printed(kind)}")
    if not is_there:
        return None
    found = tuple(Frame(name, int(line), function) for name, line, function in _FRAME.findall(stack))
    return Carried(kind, message.removeprefix(": ").rstrip("\n"), wrapper.where, text, found)


def _printed(kind):
    """Return the name of an exception's class as a traceback's last line has it."""
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"
