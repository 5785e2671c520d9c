"""Whether somebody looks at what is displayed."""

import os
import sys
import threading


def is_watched():
    """Whether somebody looks at this notebook, and it is not only tested or recorded.

    COURSE_PANEL=0 says that nobody does; nbval says so by PYTEST_CURRENT_TEST.
    """
    if os.environ.get("COURSE_PANEL") == "0" or "PYTEST_CURRENT_TEST" in os.environ:
        return False
    return is_kernel()


def is_in_cell():
    """Whether this thread runs a cell, to whose output it may add. A widget's callback may have a thread of its own."""
    return threading.current_thread() is threading.main_thread()


def is_kernel():
    """Whether this process is a notebook's kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")
