"""What a cell is called, and which lines are the student's own.

A cell's code has the name of a file that does not exist; IPython keeps its text in `linecache`.
"""

import functools
import linecache
import os
import re
import sys
import sysconfig
from pathlib import Path

_LIBRARIES = tuple(
    path.rstrip(os.sep) + os.sep
    for path in {str(Path(__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))}
)

called = {}  # file name of a cell → `Cell In[3]`, in a worker, which has no IPython to ask
_CHECKS = tuple(str(Path(__file__).parent / name) + os.sep for name in ("checks", "chapters"))


def sources():
    """{file name: text} of the cells that this process knows."""
    return {
        name: "".join(entry[2])
        for name, entry in list(linecache.cache.items())
        if len(entry) == 4 and entry[1] is None and not os.path.exists(name)
    }


def know(file, text, name):
    """Let tracebacks find the text of a cell, whose code has the file name `file`, and call it `name`."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    called[file] = name


def is_own(name):
    """Whether a file, by the name that code objects have for it, is a cell or a student's own file."""
    if _is_file_of_a_library(name):
        return False
    if name in linecache.cache and not os.path.exists(name):
        return not name.startswith("<frozen")  # a cell
    return os.path.isabs(name)


@functools.cache
def _is_file_of_a_library(name):
    return name.startswith(_LIBRARIES) or not {"site-packages", "dist-packages"}.isdisjoint(Path(name).parts)


def from_own(trace):
    """A traceback from the first frame on that the student wrote; the whole of it, if there is none.

    Where PyTorch hands an operation to a check that watches, it ends before that.
    """
    own = trace
    while own is not None and not is_own(own.tb_frame.f_code.co_filename):
        own = own.tb_next
    if own is None:
        return trace
    last = frame = own
    while frame is not None:
        last, frame = frame if is_own(frame.tb_frame.f_code.co_filename) else last, frame.tb_next
    while last.tb_next is not None:
        file = last.tb_next.tb_frame.f_code.co_filename
        if file.startswith(_CHECKS) or file.endswith("/torch/_compile.py"):
            last.tb_next = None
        else:
            last = last.tb_next
    return own


class short_traceback:
    """Inside this block an exception's traceback keeps the frames that the student wrote, and no
    others (a context manager).
    """

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        own = from_own(trace) if trace else None
        while own is not None:
            below = own.tb_next
            while below is not None and not is_own(below.tb_frame.f_code.co_filename):
                below = below.tb_next
            own.tb_next = below
            own = below


def innermost(frames):
    """Index of the innermost of `frames` (file name, line number, function) that the student wrote, else None."""
    indices = [index for index, (name, _, _) in enumerate(frames) if is_own(name)]
    return indices[-1] if indices else None


def own_line(frames):
    """`Cell In[3], line 6, in train:  dist.all_reduce(x)`, the innermost line that the student wrote; or ""."""
    own = innermost(frames)
    if own is None:
        return ""
    name, number, function = frames[own]
    linecache.checkcache(name)  # a file may have been edited since it was last read
    source = linecache.getline(name, number).strip()
    place = f"{cell_name(name)}, line {number}" + ("" if function == "<module>" else f", in {function}")
    return place + (f":  {source}" if source else "")


def cell_name(name):
    """`Cell In[3]` for the file name that IPython gives a cell, else the path, relative where it is below here."""
    if name in called:
        return called[name]
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()) is not None:
        code_name = getattr(shell.compile, "format_code_name", lambda _: None)(name)
        if code_name is not None:
            return " ".join(code_name)
    try:
        here = os.getcwd() + os.sep
    except FileNotFoundError:  # the folder has been deleted
        return name
    return os.path.relpath(name) if name.startswith(here) else name


def with_cell_names(text):
    """A traceback's text with each file called what `cell_name` calls it."""

    def rename(match):
        name = cell_name(match[1])
        return match[0] if name == match[1] else f"{name}, line"

    return re.sub(r'File "([^"\n]+)", line', rename, text)


_seen = {}  # name of a module → (its spec, when its file was last changed)


def changed_modules():
    """Return the names of imported modules of the student's own whose file has changed since, each time they change.

    Workers import the file as it is now, the notebook has what it imported. A module that was reloaded has a new spec.
    """
    changed = []
    for name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", {})  # not the attributes themselves, with which some modules import others
        file, spec = names.get("__file__"), names.get("__spec__")
        if not isinstance(file, str) or spec is None or not is_own(file):
            continue
        try:
            modified = os.stat(file).st_mtime_ns
        except OSError:
            continue
        before = _seen.get(name)
        if before is not None and before[0] is spec and before[1] != modified:
            changed.append(name)
        _seen[name] = (spec, modified)
    return changed
