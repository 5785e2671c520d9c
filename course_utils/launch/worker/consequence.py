"""Whether an exception in a rank is only what follows from the end of another: told where it was raised, in the rank.

A student's own exception never is, whatever its words: only one that PyTorch, or the framework of another
interpreter, has raised itself.
"""

import enum
import opcode
import re

_FRAMEWORKS = {"torch", "tensorflow", "horovod"}
_LOST_CONNECTION = re.compile(
    "connection (was )?(closed|reset|refused)|broken pipe|socket closed|closed by peer|remote process exit(ed|ing)"
    "|ncclRemoteError|failed to recv, got 0 bytes|recv(Value|Vector|Bytes)? failed|connectFullMesh failed",
    re.IGNORECASE,
)
_RAISES = {opcode.opmap[name] for name in ("RAISE_VARARGS", "RERAISE")}


class Consequence(enum.Enum):
    """What an exception says of another rank, if that is all it says."""

    LOST_CONNECTION = "the connection to it was lost, says the framework"
    PARTNER_GONE = "it has gone, says a class of exceptions made for that (`is_consequence`)"


def of(error: BaseException) -> Consequence | None:
    """The Consequence that `error` is, or None if it has a cause of its own."""
    if getattr(type(error), "is_consequence", False):
        return Consequence.PARTNER_GONE
    if not _is_a_frameworks(error):
        return None
    if _LOST_CONNECTION.search(str(error)):
        return Consequence.LOST_CONNECTION
    return of(error.__cause__) if error.__cause__ is not None else None


def _is_a_frameworks(error):
    """Whether a framework has raised it: its C++ code, which raises RuntimeError, too, or its own Python code."""
    if type(error) is not RuntimeError and _package(type(error).__module__) not in _FRAMEWORKS:
        return False
    trace = error.__traceback__
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    is_from_c = trace.tb_frame.f_code.co_code[trace.tb_lasti] not in _RAISES
    return is_from_c or _package(trace.tb_frame.f_globals.get("__name__")) in _FRAMEWORKS


def _package(module):
    return module.partition(".")[0] if isinstance(module, str) else ""
