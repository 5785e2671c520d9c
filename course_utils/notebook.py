"""Whether anybody is looking at what is displayed."""

import os
import sys
import threading


def is_watched():
    """Whether somebody is looking at this notebook, rather than testing or recording it.

    COURSE_PANEL=0 says that nobody is; under nbval, PYTEST_CURRENT_TEST says so.
    """
    if os.environ.get("COURSE_PANEL") == "0" or "PYTEST_CURRENT_TEST" in os.environ:
        return False
    return is_kernel()


def is_in_cell():
    """Whether this thread runs a cell, and may add to its output. A widget's callback may run in another thread."""
    return threading.current_thread() is threading.main_thread()


def is_kernel():
    """Whether this process is a notebook's kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")
