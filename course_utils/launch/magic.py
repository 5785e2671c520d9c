"""`%%ranks`: run a cell in the persistent ranks, and show the outcomes side by side."""

import builtins
import re
import time
import traceback

from .. import cells
from . import ranks, resident
from .columns import Column, as_html, as_text
from .failure import Fate, RanksError, WorkerError
from .streams import Output

_PATIENCE_S, _PAUSE_S = 0.5, 0.2  # until a running cell's columns are first shown, and between updates


def register():
    """Register `%%ranks`, if this is a notebook."""
    shell = getattr(builtins, "get_ipython", lambda: None)()
    if shell is not None:
        shell.register_magic_function(run_in_ranks, "cell", "ranks")


def run_in_ranks(line, cell):
    """Run this cell in all ranks of `ranks = Ranks(4)`, or, with `%%ranks 0,2`, in some of them.

    The ranks keep its variables for the next such cell; the notebook reads them as ranks["name"]. `rank`, `world_size`,
    `torch` and `dist` are there from the start. Each rank's output and the value of its last expression are shown in a
    column.
    """
    from IPython import get_ipython

    there = ranks.current()
    chosen = chosen_ranks(line, there.world_size)
    shell = get_ipython()
    source = "\n" + cell  # the line with %%ranks counts, too
    file = shell.compile.cache(f"%%ranks {line}\n{cell}", shell.execution_count)
    _require_syntax(source, file)
    name, values = f"Cell In[{shell.execution_count}]", [None] * there.world_size
    shown = _Shown(chosen, there)
    try:
        values = there.ask(chosen, resident.run_cell, (source, file, name), {}, name, shown.output)
    except WorkerError as error:
        error.add(_advice(error, shell.user_ns))
        raise
    finally:
        shown.show(values)


class _Shown:
    """The columns of one cell, shown at its end and, if it takes long, while it runs; also the stream of its Output."""

    def __init__(self, chosen, there):
        self._chosen, self._there, there.fates = chosen, there, None
        self.output = Output(there.world_size, self)
        self._handle, self._next = None, time.monotonic() + _PATIENCE_S

    def write(self, _):
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PAUSE_S
            self.show([None] * self._there.world_size)

    def flush(self):
        pass

    def show(self, values):
        from IPython.display import display

        fates = self._there.fates or [Fate(rank, returned=True) for rank in range(self._there.world_size)]
        columns = [Column.of(fates[rank], self.output.log(rank), values[rank]) for rank in self._chosen]
        columns.sort(key=lambda column: not column.has_failed)  # failed ones first
        if not any(column.text or column.failure for column in columns):
            return
        data = {"text/plain": as_text(columns), "text/html": as_html(columns)}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def chosen_ranks(line, world_size):
    """The ranks that `0,2` or `1-3` names, in order; "" means all. Raises RanksError."""
    chosen = set()
    for part in re.split(r"[,\s]+", line.strip()):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if part and not found:
            raise RanksError(f"%%ranks takes rank numbers, as in `%%ranks 0,2` or `%%ranks 1-3`, not {line.strip()!r}")
        if found:
            chosen |= set(range(int(found[1]), int(found[2] or found[1]) + 1))
    if too_high := sorted(rank for rank in chosen if rank >= world_size):
        raise RanksError(f"there is no rank {too_high[0]}: these are ranks 0 to {world_size - 1}")
    return sorted(chosen) or list(range(world_size))


def _require_syntax(source, file):
    try:
        compile(source, file, "exec")
    except SyntaxError as error:
        told = cells.with_cell_names("".join(traceback.format_exception_only(error))).rstrip()
        raise RanksError(f"this cell was not run because it is not valid Python\n{told}") from None


def _advice(error, names):
    """Advice for a student who expects to find the notebook's variables in the ranks."""
    missing = re.match(r"name '(\w+)' is not defined", error.message)
    if error.type_name != "NameError" or missing is None or missing[1] not in names:
        return ""
    name = missing[1]
    return (
        f"{name} is defined in the notebook, and the ranks have variables of their own: "
        f'ranks["{name}"] = {name} copies it to them.'
    )
