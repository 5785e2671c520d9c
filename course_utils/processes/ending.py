"""How a process of ours ends: its output is flushed, and its exit cannot hang or abort."""

import atexit
import contextlib
import ctypes
import os
import sys
import threading


def leave(code=0):
    """End this process as an interpreter would (threads, exit handlers, buffers), but without destructors.

    Destructors may hang. And if gloo's own thread still holds a tensor from Python, it asks for the interpreter, which
    is being finalised, and aborts the process (“terminate called without an active exception”).
    """
    try:
        threading._shutdown()  # waits for non-daemon threads
        atexit._run_exitfuncs()
    finally:
        flush()
        os._exit(code)


def flush():
    """Write out what Python and C code have buffered."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, a broken pipe, or a student's own object
            stream.flush()
    ctypes.CDLL(None).fflush(None)
