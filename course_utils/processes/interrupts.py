"""When an interrupt of the notebook may strike: not while a launch sets up or clears away.

Blocking SIGINT for the main thread would not do: the system then gives it to another thread of the kernel, and Python
raises KeyboardInterrupt in the main one all the same. So for the time of a launch the handler is ours.
"""

import contextlib
import signal
import threading
import time


class _Handler:
    """Stands in for `usual` and calls it when it may raise. One for each block: what it put off dies with it."""

    def __init__(self, usual):
        self.usual = usual
        self.is_allowed = False
        self.missed = None  # the arguments of a call that was put off; of several, one is enough

    def __call__(self, *args):
        if not self.is_allowed:
            self.missed = args
            return
        self.is_allowed = False  # clearing away begins
        self.usual(*args)
        self.is_allowed = True  # it has not raised

    def catch_up(self):
        missed, self.missed = self.missed, None
        if missed is not None:
            self.usual(*missed)


_handler = None


@contextlib.contextmanager
def deferred():
    """Put interrupts off to the next `allowed()` within this block, or else to its end.

    Does nothing in other threads than the main one, which Python never interrupts.
    """
    global _handler
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return
    handler, before = _Handler(usual), _handler
    _handler = handler
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        _handler = before
        signal.signal(signal.SIGINT, usual)
        handler.catch_up()


@contextlib.contextmanager
def allowed():
    """Let an interrupt through in this block of a `deferred()` one, also one that came before it."""
    handler = _handler
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        handler.is_allowed = True
        if handler.missed is not None:
            handler.is_allowed = False
            handler.catch_up()
            handler.is_allowed = True
        yield
    finally:
        handler.is_allowed = False


def sleep(seconds):
    """Wait, and let interrupts through meanwhile."""
    with allowed():
        time.sleep(seconds)
