"""Names and sources of cells, and which stack frames are the student's own.

A cell's code has the name of a file that does not exist; IPython keeps its source in `linecache`.
"""

import functools
import hashlib
import linecache
import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

_LIBRARIES = tuple(
    path.rstrip(os.sep) + os.sep
    for path in {str(Path(__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))}
)

called = {}  # file name of a cell → `Cell In[3]`, for workers, which have no IPython
# Of code that IPython compiles below a magic, without keeping its text: file name → what messages call it.
_TIMED = {
    "<timed exec>": "the code below %%time",
    "<timed eval>": "the code of %time",
    "<magic-timeit>": "the code of %timeit",
}
LAUNCHER = str(Path(__file__).parent / "launch") + os.sep
_CHECKS = tuple(str(Path(__file__).parent / name) + os.sep for name in ("checks", "chapters"))


def sources():
    """Return {file name: source} of the cells that this process knows."""
    return {
        name: "".join(entry[2])
        for name, entry in list(linecache.cache.items())
        if len(entry) == 4 and entry[1] is None and not os.path.exists(name)
    }


def know(file, text, name):
    """Register a cell's source `text` under its file name `file`, for tracebacks; messages call the cell `name`."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    called[file] = name


def is_own(name):
    """Return whether `name`, the file name of a code object, is a cell or a file of the student's own."""
    if _is_file_of_a_library(name):
        return False
    if name in _TIMED or name == "<stdin>":  # what is typed into `python -i` before 3.13, which keeps its text
        return True
    if name in linecache.cache and not os.path.exists(name):
        return not name.startswith("<frozen")  # a cell
    return os.path.isabs(name)


@functools.cache
def _is_file_of_a_library(name):
    return name.startswith(_LIBRARIES) or not {"site-packages", "dist-packages"}.isdisjoint(Path(name).parts)


def from_own(trace):
    """Return a traceback from the student's first frame on, or all of it if there is none.

    If PyTorch has called a check that watches operations, the traceback is cut before the check's frames.
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
    """A context manager that reduces the traceback of an exception to the student's own frames."""

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
    """Return the index of the student's innermost frame in `frames` (file name, line number, function), or None."""
    indices = [index for index, (name, _, _) in enumerate(frames) if is_own(name)]
    return indices[-1] if indices else None


def own_line(frames):
    """Return the student's innermost line, as `Cell In[3], line 6, in train:  dist.all_reduce(x)`, or ""."""
    own = innermost(frames)
    if own is None:
        return ""
    name, number, function = frames[own]
    linecache.checkcache(name)  # the file may have been edited
    source = linecache.getline(name, number).strip()
    place = f"{cell_name(name)}, line {number}" + ("" if function == "<module>" else f", in {function}")
    return place + (f":  {source}" if source else "")


def cell_name(name):
    """Return `Cell In[3]` for the file name of a cell, else the path, relative if it is below the current folder."""
    if name in called or name in _TIMED:
        return called.get(name) or _TIMED[name]
    if (shell := _shell()) is not None:
        code_name = getattr(shell.compile, "format_code_name", lambda _: None)(name)
        if code_name is not None:
            return " ".join(code_name)
    try:
        here = os.getcwd() + os.sep
    except FileNotFoundError:  # the folder has been deleted
        return name
    return os.path.relpath(name) if name.startswith(here) else name


def _shell():
    """Return the notebook's IPython, or None."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def with_cell_names(text):
    """Return a traceback's text with each file name replaced by its `cell_name`."""

    def rename(match):
        name = cell_name(match[1])
        return match[0] if name == match[1] else f"{name}, line"

    return re.sub(r'File "([^"\n]+)", line', rename, text)


def without_addresses(text):
    """Return the `repr` of functions and other objects without their addresses, which tell nobody anything."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _autoreloaded():
    """Return {module's name: st_mtime of the file that it was brought up to date with} of `%autoreload`."""
    magics = getattr(_shell(), "magics_manager", None)
    reloader = getattr(getattr(magics, "registry", {}).get("AutoreloadMagics"), "_reloader", None)
    return getattr(reloader, "modules_mtimes", {})


class _Seen(NamedTuple):
    spec: Any
    modified: int  # st_mtime_ns of its file
    imported: bytes  # digest of the file as the notebook has it
    latest: bytes  # and as it was last seen


_seen: dict[str, _Seen] = {}  # by the module's name


def changed_modules():
    """Return the names of the student's imported modules whose files have changed; each change is returned once.

    Workers import the new file, while the notebook has the old one. A reloaded module has a new spec, and is skipped;
    so is one that IPython's autoreload has brought up to date in its place, and one whose change has been undone.
    """
    changed, updated = [], _autoreloaded()
    for name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", {})  # getattr on the module may trigger lazy imports
        file, spec = names.get("__file__"), names.get("__spec__")
        if not isinstance(file, str) or spec is None or not is_own(file):
            continue
        before = _seen.get(name)
        try:
            modified = os.stat(file).st_mtime_ns
            if before is not None and before.spec is spec and before.modified == modified:
                continue
            latest = hashlib.blake2b(Path(file).read_bytes()).digest()
        except OSError:
            continue
        if before is None or before.spec is not spec or updated.get(name, 0) >= modified / 1e9 - 1e-6:
            imported = latest
        else:
            imported = before.imported
            if latest not in (imported, before.latest):
                changed.append(name)
        _seen[name] = _Seen(spec, modified, imported, latest)
    return changed
