"""`%%ranks`: run a cell in the persistent ranks, and show the outcomes side by side."""

import builtins
import itertools
import re
import sys
import traceback
import types

from ... import cells
from ..call import Call
from ..display.columns import Columns
from ..watch.errors import RanksError, WorkerError
from . import ranks, request_loop

_cells = itertools.count(1)


def register() -> None:
    """Register `%%ranks`, if this is a notebook."""
    shell = getattr(builtins, "get_ipython", lambda: None)()
    if shell is not None:
        shell.register_magic_function(run_in_ranks, "cell", "ranks")


def run_in_ranks(line: str, cell: str) -> None:
    """Run this cell in all ranks of `ranks = Ranks(4)`, or, with `%%ranks 0,2`, in some of them.

    The ranks keep its variables for the next such cell; the notebook reads them as ranks["name"]. `rank`, `world_size`,
    `torch` and `dist` are predefined. A column for each rank shows its output and the value of its last expression.
    """
    from IPython import get_ipython

    there = ranks.current()
    chosen = chosen_ranks(line, there.world_size)
    # The added newline stands for the line with %%ranks, so that line numbers are those of the cell.
    source, file, name = "\n" + cell, f"<%%ranks {next(_cells)}>", _cell_name()
    cells.know(file, f"%%ranks {line}\n{cell}", name)
    _require_syntax(source, file)
    values = [None] * there.world_size
    shown = Columns(chosen, there.world_size)
    try:
        values = there.ask(chosen, Call(request_loop.run_cell, (source, file, name)), name, shown.output, shown)
    except WorkerError as error:
        error.add(_advice(error, get_ipython()))
        raise
    finally:
        shown.finish(values)


def _cell_name():
    """Return the name of the calling cell, as in `Cell In[3]`."""
    frame = sys._getframe(1)
    while frame is not None:
        name = cells.cell_name(frame.f_code.co_filename)
        if name.startswith("Cell "):
            return name
        frame = frame.f_back
    return "this cell"


def chosen_ranks(line: str, world_size: int) -> list[int]:
    """Return the ranks that `0,2` or `1-3` names, in order; "" means all. Raises RanksError for anything else."""
    chosen: set[int] = set()
    for part in re.split(r"[,\s]+", line.strip()):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if part and not found:
            raise RanksError(f"%%ranks takes rank numbers, as in `%%ranks 0,2` or `%%ranks 1-3`, not {line.strip()!r}")
        if found:
            first, last = int(found[1]), int(found[2] or found[1])
            if first > last:
                raise RanksError(f"{part} names no rank: write the lower number first")
            if last >= world_size:
                raise RanksError(f"there is no rank {last}: these are ranks 0 to {world_size - 1}")
            chosen |= set(range(first, last + 1))
    return sorted(chosen) or list(range(world_size))


_ONLY_IN_THE_NOTEBOOK = (
    (
        re.compile(r"^\s*(%|!|.*\?$)", re.MULTILINE),
        "A rank has no IPython, and so no %magic, no !command and no name?: call the function that the magic stands "
        "for, or subprocess.run.",
    ),
    (
        re.compile(r"\bawait\b"),
        "A rank has no event loop: asyncio.run(…) of a function runs what awaits.",
    ),
)


def _require_syntax(source, file):
    try:
        compile(source, file, "exec")
    except SyntaxError as error:
        told = cells.with_cell_names("".join(traceback.format_exception_only(error))).rstrip()
        why = next((f"\n{advice}" for pattern, advice in _ONLY_IN_THE_NOTEBOOK if pattern.search(source)), "")
        raise RanksError(f"this cell was not run because it is not valid Python\n{told}{why}") from None


def _advice(error, shell):
    """Return advice if a NameError names a variable of the notebook, which the ranks do not have, else ""."""
    missing = re.match(r"name '(\w+)' is not defined", error.message)
    if not error.is_a(NameError) or missing is None:
        return ""
    name = missing[1]
    if name == "display":
        return "A rank has no IPython, and so no display: print there, or display the value in the notebook."
    if name not in shell.user_ns or name in shell.user_ns_hidden:
        return ""
    return f"{name} is defined in the notebook, and the ranks have variables of their own: " + (
        "repeat its import in a %%ranks cell."
        if _is_imported(shell.user_ns[name])
        else f'ranks["{name}"] = {name} copies it to them.'
    )


def _is_imported(value):
    """Return whether `value` is a module, or a function or class of one, which an import brings."""
    module = getattr(value, "__module__", None) if callable(value) else None
    return isinstance(value, types.ModuleType) or module not in (None, "__main__") and hasattr(value, "__name__")
