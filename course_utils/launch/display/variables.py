"""Shows the variables of the student's functions when a launch has failed, folded below the error."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from ... import cells, notebook
from .table import caption

if TYPE_CHECKING:
    from ..watch.errors import WorkerError


def show_below(error: WorkerError) -> None:
    """Show the variables below `error` once the cell has shown it; not if the cell catches it."""
    text = as_html(error)
    if not text or not (notebook.is_watched() and notebook.is_in_cell()):
        return
    from IPython import get_ipython
    from IPython.display import HTML, display

    events = get_ipython().events

    def show(result):
        events.unregister("post_run_cell", show)
        if result.error_in_exec is error:
            display(HTML(text))

    events.register("post_run_cell", show)


def as_html(error: WorkerError) -> str:
    """Return a folded list of the student's frames in each rank, with their variables; "" if nothing is known."""
    ranks = [(outcome.rank, [frame for frame in outcome.frames if frame.locals]) for outcome in error.ranks]
    ranks = [(rank, frames) for rank, frames in ranks if frames]
    ranks.sort(key=lambda item: item[0] != error.rank)  # the error's own rank first
    if not ranks:
        return ""
    parts = "".join(_frame(rank, frame) for rank, frames in ranks for frame in reversed(frames))
    names = ", ".join(str(rank) for rank, _ in ranks)
    return (
        f"<details><summary>What the variables held: rank{'s' if len(ranks) > 1 else ''} {names}</summary>"
        f"{parts}</details>"
    )


def _frame(rank, frame):
    place = f"rank {rank}, {cells.cell_name(frame.file)}, line {frame.line}, in {frame.function}"
    rows = "".join(
        f'<tr><th scope="row" style="text-align: left"><code>{html.escape(name)}</code></th>'
        f'<td style="text-align: left"><code>{html.escape(text)}</code></td></tr>'
        for name, text in frame.locals.items()
    )
    return f'<table style="margin: 0.5em 0 0.5em 1em">{caption(place)}<tbody>{rows}</tbody></table>'
