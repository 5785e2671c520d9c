"""Whether somebody looks at what a launch displays."""

import os
import sys
import threading


def is_watched():
    """Whether this thread runs a notebook's cell that somebody looks at, and is not one that is tested or recorded.

    COURSE_PANEL=0 says that nobody does; nbval says so by PYTEST_CURRENT_TEST.
    """
    if os.environ.get("COURSE_PANEL") == "0" or "PYTEST_CURRENT_TEST" in os.environ:
        return False
    return is_kernel() and threading.current_thread() is threading.main_thread()


def is_kernel():
    """Whether this process is a notebook's kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")
