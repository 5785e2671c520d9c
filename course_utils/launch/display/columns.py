"""What each rank printed and the value of its last expression, side by side: as HTML, and as text."""

import html
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ... import cells, notebook
from ..watch.explain import how_it_failed
from ..watch.outcome import Outcome, names_of
from ..watch.rows import Rows
from ..watch.streams import Output, as_on_a_terminal
from .base import Display
from .status import in_short, latest_values

_CHARS = 20_000  # of a rank's output: half from its beginning, half from its end
_PATIENCE_S = 0.5  # until a running cell's columns are first shown
_SHARE = 0.1  # of the time that drawing may take
_WIDTH_EM, _GAP_EM = 16, 1.5  # of a column, at least; between two


class Columns(Display):
    """The columns of one cell, shown at its end, and while it runs if it takes long.

    `output` is the Output that collects what the ranks print.
    """

    pause_s = 0.2

    def __init__(self, chosen, world_size):
        super().__init__()
        self._chosen, self._world_size = chosen, world_size
        self.output = Output(world_size, _Nowhere(), logs="ranks.logs")
        self.begin([Outcome(rank) for rank in range(world_size)], Rows(world_size))
        self._handle, self._shown, self.due = None, None, time.monotonic() + _PATIENCE_S

    def begin(self, outcomes: Sequence[Outcome], rows: Rows) -> None:
        """Show these Outcomes and Rows from now on; they keep changing."""
        self._outcomes, self._rows = outcomes, rows

    def _draw(self):
        began = time.monotonic()
        self._show([None] * self._world_size)
        self.due = max(self.due, time.monotonic() + (time.monotonic() - began) / _SHARE)

    _catch_up = _draw

    def _hurry(self):
        self.due = 0.0

    def _finish(self, values):
        """Show the final columns with `values`, the ranks' results as text."""
        self.output.finish()
        self._show(values)

    def _show(self, values):
        from IPython.display import display

        columns = [
            Column.of(self._outcomes[rank], self.output.log(rank), self._logged(rank), values[rank])
            for rank in self._chosen
        ]
        if not any(column.text or column.failure for column in columns):
            return
        data = {"text/plain": as_text(columns), "text/html": as_html(columns)}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        elif data != self._shown:
            self._handle.update(data, raw=True)
        self._shown = data

    def _logged(self, rank):
        count, latest = self._rows.counts[rank], self._rows.latest[rank]
        if not count:
            return ""
        said = ", ".join(filter(None, [f"step {in_short(latest.step)}", latest_values(latest)]))
        return f"logged {count:,} row{'s' * (count > 1)}, the last: {said}"


class _Nowhere:
    """A stream that drops what is written, since columns show the text."""

    def write(self, _):
        pass

    def flush(self):
        pass


@dataclass(frozen=True)
class Column:
    """One rank's column: its output, the value of its last expression and, if it did not finish, why."""

    rank: int
    text: str
    failure: str = ""
    has_failed: bool = False

    @classmethod
    def of(cls, outcome: Outcome, output: str, logged: str, value: str | None) -> "Column":
        place = cells.own_line(outcome.frames)
        output = as_on_a_terminal(output)
        if len(output) > _CHARS:
            left_out = f"… {len(output) - _CHARS:,} characters left out here; ranks.logs has more …"
            output = f"{output[: _CHARS // 2]}\n{left_out}\n{output[-_CHARS // 2 :]}"
        failure = ""
        if outcome.has_quit:
            failure = "quit at the prompt" + (f" at {place}" if place else "")
        elif outcome.has_failed:
            failure = how_it_failed(outcome) + (f"\n  at {place}" if place else "")
        elif not outcome.returned and place:
            failure = f"last seen at {place}"
        text = "\n".join(part for part in (output.rstrip("\n"), logged, value) if part)
        return cls(outcome.rank, text, failure, outcome.has_failed and not outcome.has_quit)

    @property
    def state(self) -> str:
        return " failed" if self.has_failed else " did not finish" if self.failure else ""


def as_text(columns: Sequence[Column]) -> str:
    """Return the columns as text, one after another, failed ones first; ranks with equal text share an entry."""
    groups: dict[tuple[str, str], list[int]] = {}
    for column in sorted(columns, key=lambda column: not column.has_failed):
        text = "\n".join(part for part in (column.text, column.failure) if part)
        groups.setdefault((column.state, text), []).append(column.rank)
    return "\n".join(
        f"{names_of(ranks)}{state}:{chr(10) if chr(10) in text else ' '}{text}"
        for (state, text), ranks in groups.items()
        if text
    )


def as_html(columns: Sequence[Column]) -> str:
    """Return HTML with a column for each rank, all side by side, or half of them, and so on, as the width allows."""
    return f'<div style="display: flex">{_beside([_section(column) for column in columns])}</div>'


def _beside(sections):
    """Return halves that stand side by side if they fit: four columns never become three and one."""
    count, half = len(sections), (len(sections) + 1) // 2
    width_em = count * _WIDTH_EM + (count - 1) * _GAP_EM
    inner = sections[0] if count == 1 else _beside(sections[:half]) + _beside(sections[half:])
    wraps = f"display: flex; flex-wrap: wrap; gap: 0 {_GAP_EM}em; " if count > 1 else ""
    return f'<div style="{wraps}flex: {count} 1 {width_em}em; min-width: 0">{inner}</div>'


def _section(column):
    color = "var(--jp-error-color1, #b71c1c)" if column.has_failed else "var(--jp-border-color1, #999)"
    title = f"rank {column.rank}{column.state}"
    body = "".join(
        f'<pre style="white-space: pre-wrap; {notebook.WHOLE_WORDS}; margin: 0.3em 0">{html.escape(part)}</pre>'
        for part in (column.text, column.failure)
        if part
    )
    return (
        f'<div role="group" aria-label="{title}" style="border-top: 2px solid {color}; margin-top: 0.5em">'
        f"<strong>{title}</strong>{body}</div>"
    )
