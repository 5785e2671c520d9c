"""The table of a launch's ranks, as HTML that is readable in light and dark themes, and as plain text."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .status import Status

# Background and text colours with enough contrast in both themes (WCAG AA); the state is shown as text, too.
_LOOKS = {"failed": "background: #b71c1c; color: #fff", "waiting": "background: #fff3cd; color: #4d3800"}
_MEGABYTE = 1 << 20


def as_html(statuses: Sequence[Status], title: str, notes: Sequence[str] = ()) -> str:
    """Return an HTML table with a row for each Status, under `title`; empty columns are left out. `notes` follow."""
    columns = _columns(statuses)
    head = "".join(f'<th scope="col" style="text-align: left">{name}</th>' for name in columns)
    rows = "".join(_row(status, [cells[i] for cells in columns.values()]) for i, status in enumerate(statuses))
    return (
        f'<table style="width: auto; margin: 0.3em 0">{caption(title)}'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        + "".join(f'<p style="margin: 0.3em 0">{html.escape(note)}</p>' for note in notes)
    )


def caption(text: str) -> str:
    """Return a table's <caption>, in one line even where the table is narrow."""
    return f'<caption style="text-align: left; white-space: nowrap">{html.escape(text)}</caption>'


def _row(status, cells):
    look = _LOOKS.get(status.kind, "")
    name, state, *numbers = cells
    row = f'<td style="text-align: left; {look}">{state}</td>'
    row += "".join(f'<td style="text-align: left; white-space: nowrap; {look}">{each}</td>' for each in numbers)
    return f'<tr style="{look}"><th scope="row" style="text-align: left; {look}">{name}</th>{row}</tr>'


def _columns(statuses):
    """Return {column name: the HTML of each row's cell}."""
    columns = {
        "rank": [str(status.rank) for status in statuses],
        "state": [html.escape(status.state) for status in statuses],
        "progress": [_progress(status) for status in statuses],
        "step": [html.escape(status.step) for status in statuses],
        "latest": [html.escape(status.values) for status in statuses],
        "rate": [html.escape(status.rate) for status in statuses],
        "memory": [_megabytes(status.memory_bytes) for status in statuses],
        "last collective": [html.escape(status.collective) for status in statuses],
        "last line": [f"<code>{html.escape(status.line)}</code>" if status.line else "" for status in statuses],
    }
    return {name: cells for name, cells in columns.items() if any(cells)}


def _progress(status):
    if status.done is None:
        return ""
    text = f"{status.done:,} of {status.total:,}"
    bar = f'<progress value="{status.done}" max="{status.total}" style="width: 7em" aria-label="{text} steps">'
    return f"{bar}</progress> {text}"


def _megabytes(size):
    return "" if size is None else f"{size / _MEGABYTE:,.0f} MiB"


def as_text(statuses: Sequence[Status], title: str, notes: Sequence[str] = ()) -> str:
    """Return the table as plain text, one line for each rank and each of `notes`."""
    lines = [title]
    for status in statuses:
        done = "" if status.done is None else f"{status.done:,} of {status.total:,}"
        step = f"step {status.step}" if status.step else ""
        last = f"last collective {status.collective}" if status.collective else ""
        parts = (status.state, done, step, status.values, status.rate, _megabytes(status.memory_bytes), last)
        lines.append(f"rank {status.rank}: " + ", ".join(filter(None, parts)))
    return "\n".join([*lines, *notes])
