"""Whether this process is a notebook, and whether anyone looks at its output."""

import html
import os
import sys
import threading

WHOLE_WORDS = "word-break: normal; overflow-wrap: anywhere"  # JupyterLab breaks lines of a <pre> within words


def is_watched():
    """Return whether this is a notebook that is not being tested or recorded.

    COURSE_PANEL=0, or PYTEST_CURRENT_TEST under nbval, means that it is.
    """
    if os.environ.get("COURSE_PANEL") == "0" or "PYTEST_CURRENT_TEST" in os.environ:
        return False
    return is_kernel()


def is_typed_into():
    """Return whether the front end that runs this cell lets its reader type: papermill, nbclient and nbval do not."""
    return bool(_request().get("content", {}).get("allow_stdin"))


def say(text):
    """Print `text`; where somebody watches, show it so that JupyterLab breaks its lines between words."""
    if not is_watched():
        print(text)
        return
    from IPython.display import display

    shown = f'<pre style="white-space: pre-wrap; {WHOLE_WORDS}">{html.escape(text)}</pre>'
    display({"text/plain": text, "text/html": shown}, raw=True)


def cell():
    """Return an id of this run of the cell that runs, "" outside a kernel."""
    return _request().get("header", {}).get("msg_id", "")


def _request():
    """Return the front end's message that asked for what runs, {} outside a kernel."""
    shell = sys.modules["IPython"].get_ipython() if is_kernel() else None
    return (shell.kernel.get_parent("shell") if shell is not None else None) or {}


def is_in_cell():
    """Return whether this thread runs a cell and may add to its output; a widget's callback may run in another."""
    return threading.current_thread() is threading.main_thread()


def shows_values():
    """Return whether the value of a cell's last expression is shown, as IPython and Python's own prompt do."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None or hasattr(sys, "ps1")


def is_kernel():
    """Return whether this process is a notebook's kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")
