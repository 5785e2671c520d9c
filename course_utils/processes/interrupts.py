"""Delays interrupts of the notebook while a launch sets up or cleans up.

Blocking SIGINT for the main thread is not enough: the system then delivers it to another thread of the kernel, and
Python still raises KeyboardInterrupt in the main thread. So a launch installs a handler of its own.
"""

import contextlib
import signal
import threading
import time


class _Handler:
    """A SIGINT handler that calls `usual`, the previous one, when interrupts are allowed; one per `deferred` block."""

    def __init__(self, usual):
        self.usual = usual
        self.is_allowed = False
        self.missed = None  # the arguments of the last delayed call

    def __call__(self, *args):
        if not self.is_allowed:
            self.missed = args
            return
        self.is_allowed = False  # if `usual` raises, cleaning up begins
        self.usual(*args)
        self.is_allowed = True

    def catch_up(self):
        missed, self.missed = self.missed, None
        if missed is not None:
            self.usual(*missed)


_handler = None


@contextlib.contextmanager
def deferred():
    """Delay interrupts to the next `allowed()` within this block, or to its end.

    Does nothing in threads other than the main one, since Python never interrupts them.
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
    """Allow interrupts in this block inside a `deferred()` one; one that was delayed takes effect at once."""
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
    """Sleep for `seconds`, allowing interrupts."""
    with allowed():
        time.sleep(seconds)
