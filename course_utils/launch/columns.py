"""What each rank printed and the value of its last expression, side by side: as HTML, and as text."""

import html
from dataclasses import dataclass

from .. import cells
from .failure import how_it_failed, names_of

_CHARS = 20_000  # of a rank's output


@dataclass(frozen=True)
class Column:
    """What one rank shows: its output, the value of its last expression and, if it did not finish, why."""

    rank: int
    text: str
    failure: str = ""
    has_failed: bool = False

    @classmethod
    def of(cls, fate, output, value):
        place = cells.own_line(fate.frames)
        output = output if len(output) <= _CHARS else f"{output[:_CHARS]}… ({len(output):,} characters)"
        failure = ""
        if fate.has_failed:
            failure = how_it_failed(fate) + (f"\n  at {place}" if place else "")
        elif not fate.returned and place:
            failure = f"last seen at {place}"
        text = "\n".join(part for part in (output.rstrip("\n"), value) if part)
        return cls(fate.rank, text, failure, fate.has_failed)

    @property
    def state(self):
        return " failed" if self.has_failed else " did not finish" if self.failure else ""


def as_text(columns):
    """One rank after another, with those that show the same grouped."""
    groups = {}
    for column in columns:
        text = "\n".join(part for part in (column.text, column.failure) if part)
        groups.setdefault((column.state, text), []).append(column.rank)
    return "\n".join(
        f"{names_of(ranks)}{state}:{chr(10) if chr(10) in text else ' '}{text}"
        for (state, text), ranks in groups.items()
        if text
    )


def as_html(columns):
    """A column for each rank, as many side by side as fit the notebook's width."""
    parts = "".join(_section(column) for column in columns)
    return f'<div style="display: flex; flex-wrap: wrap; gap: 0 1.5em">{parts}</div>'


def _section(column):
    color = "var(--jp-error-color1, #b71c1c)" if column.has_failed else "var(--jp-border-color1, #999)"
    title = f"rank {column.rank}{column.state}"
    body = "".join(
        f'<pre style="white-space: pre-wrap; margin: 0.3em 0">{html.escape(part)}</pre>'
        for part in (column.text, column.failure)
        if part
    )
    return (
        f'<div role="group" aria-label="{title}" style="flex: 1 1 16em; min-width: 0; '
        f'border-top: 2px solid {color}; margin-top: 0.5em"><strong>{title}</strong>{body}</div>'
    )
