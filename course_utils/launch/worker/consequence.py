"""Decides, in the rank, whether an exception only follows from the end of another rank.

Only exceptions that a framework itself has raised (PyTorch, or that of another interpreter) can be consequences; a
student's own exception never is, whatever its message.
"""

import enum
import opcode
import re

_FRAMEWORKS = {"torch", "tensorflow", "horovod"}
_LOST_CONNECTION = re.compile(
    "connection (was )?(closed|reset|refused)|broken pipe|socket closed|closed by peer|remote process exit(ed|ing)"
    "|ncclRemoteError|failed to recv, got 0 bytes|recv(Value|Vector|Bytes)? failed|connectFullMesh failed"
    # Of debug mode, which awaits all ranks before each collective.
    "|failed to pass monitoredBarrier",
    re.IGNORECASE,
)
_RAISES = {opcode.opmap[name] for name in ("RAISE_VARARGS", "RERAISE")}


class Consequence(enum.Enum):
    """How an exception follows from the end of another rank."""

    LOST_CONNECTION = "the connection to it was lost, says the framework"
    PARTNER_GONE = "it has gone, says a class of exceptions made for that (`is_consequence`)"


def of(error: BaseException) -> Consequence | None:
    """Return the Consequence that `error` is, or None if it has a cause of its own."""
    if getattr(type(error), "is_consequence", False):
        return Consequence.PARTNER_GONE
    if not _is_a_frameworks(error):
        return None
    if _LOST_CONNECTION.search(str(error)):
        return Consequence.LOST_CONNECTION
    return of(error.__cause__) if error.__cause__ is not None else None


def _is_a_frameworks(error):
    """Return whether a framework has raised `error`: its Python code, or C++ code, which raises RuntimeError too."""
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
