"""How a process of ours ends: what it has printed is out, and nothing can hang or abort on the way."""

import atexit
import contextlib
import ctypes
import os
import sys
import threading


def leave(code=0):
    """End this process as an interpreter would (threads, exit handlers, buffers), but for destructors.

    Those may hang. And where gloo's own thread still holds a tensor that Python has made, it aborts the process
    (“terminate called without an active exception”) as it asks for an interpreter that has begun to end.
    """
    try:
        threading._shutdown()  # waits for threads that are no daemons
        atexit._run_exitfuncs()
    finally:
        flush()
        os._exit(code)


def flush():
    """Write out what Python and C code have buffered."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it was closed, nobody reads it any more, or it is a student's own
            stream.flush()
    ctypes.CDLL(None).fflush(None)
