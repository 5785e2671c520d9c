"""What a notebook shows while a check takes long: what is checked, for how long, and how to stop it."""

import contextlib
import threading
import time
from collections.abc import Iterator

from ..notebook import is_in_cell, is_watched

_FIRST_S = 3  # nearly all checks take less
_EVERY_S = 1
_MOMENT = " The first check after a kernel's start takes a moment: its workers have PyTorch to import."

_has_checked = False


@contextlib.contextmanager
def waiting(exercise: str) -> Iterator[None]:
    """Show a line below the cell while this block takes long; it disappears at the end."""
    global _has_checked
    if not (is_watched() and is_in_cell()):
        yield
        return
    more, _has_checked = "" if _has_checked else _MOMENT, True
    is_over, begin = threading.Event(), time.monotonic()
    thread = threading.Thread(target=_show, args=(exercise, more, begin, is_over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()  # or the line could come after the verdict


def _show(exercise, more, begin, is_over):
    """Show the line from `_FIRST_S` on until `is_over`. A thread, since the cell's own waits for the workers."""
    from IPython.display import display

    handle, pause_s = None, _FIRST_S
    while not is_over.wait(pause_s):
        pause_s = _EVERY_S
        line = f"checking exercise {exercise}: {time.monotonic() - begin:.0f} s; ■ stops it.{more}"
        shown = {"text/plain": line, "text/html": f'<div role="status">{line}</div>'}
        if handle is None:
            handle = display(shown, raw=True, display_id=True)
        else:
            handle.update(shown, raw=True)
    if handle is not None:
        handle.update({"text/plain": "", "text/html": ""}, raw=True)
