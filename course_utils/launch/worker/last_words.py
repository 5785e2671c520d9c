"""Has a rank say where it was and what it had called if C++ code gives up, as gloo does when shapes differ.

C++ then calls `std::terminate`, often in a thread without Python code, and the process aborts; nobody could ask it any
more. Without this, only the innocent ranks tell of their collectives.
"""

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

from ..forkserver.protocol import Described, Recalled
from . import frames, recorder

_kept: list[Any] = []  # else ctypes would free the function that C++ calls


def before_an_abort(send: Callable[[object], object]) -> None:
    """Have `std::terminate` send this rank's stack and calls before it does what it usually does.

    Does nothing where C++ has another library, as on macOS.
    """
    with contextlib.suppress(OSError, AttributeError):
        set_terminate = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
        set_terminate.argtypes, set_terminate.restype = [ctypes.c_void_p], ctypes.c_void_p

        @ctypes.CFUNCTYPE(None)
        def terminate():
            try:
                send(Described(frames.of_main_thread()))
                send(Recalled(recorder.now()))
            except Exception:  # a process that the rank has forked, or a notebook that has ended
                pass
            usual()

        usual = ctypes.CFUNCTYPE(None)(set_terminate(ctypes.cast(terminate, ctypes.c_void_p)))
        _kept.append(terminate)
