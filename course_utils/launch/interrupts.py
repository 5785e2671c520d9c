"""When an interrupt of the notebook may strike: not while a launch sets up or clears away.

Blocking SIGINT for the main thread would not do: the system then gives it to another thread of the kernel, and Python
raises KeyboardInterrupt in the main one all the same. So for the time of a launch the handler is ours.
"""

import contextlib
import signal
import threading

_missed = []  # arguments of the handler's calls that were put off
_is_allowed = False


@contextlib.contextmanager
def deferred():
    """Put interrupts off to the next `allowed()` within this block, or else to its end.

    Does nothing in other threads than the main one, which Python never interrupts.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return

    def handle(*args):
        global _is_allowed
        if not _is_allowed:
            _missed.append(args)
            return
        _is_allowed = False  # clearing away begins
        handler(*args)
        _is_allowed = True  # it has not raised

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if _missed:
            args = _missed[0]
            _missed.clear()
            handler(*args)


@contextlib.contextmanager
def allowed():
    """Let an interrupt through in this block of a `deferred()` one, also one that came before it."""
    global _is_allowed
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _is_allowed = True
    try:
        if _missed:
            _missed.clear()
            signal.raise_signal(signal.SIGINT)
        yield
    finally:
        _is_allowed = False
