"""Run a coordinator by itself: `python -m course_utils.parallel.membership 4` for replicas that begin when 4 are there.

It prints its address, which each replica needs, and runs until it is interrupted.
"""

import contextlib
import sys
import threading

from .coordinator import Coordinator

with Coordinator(int(sys.argv[1])) as coordinator, contextlib.suppress(KeyboardInterrupt):
    print(coordinator.address, flush=True)
    threading.Event().wait()
