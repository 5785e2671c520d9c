"""What a launch shows while it runs: a panel in a notebook, a progress bar in a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from ... import notebook
from ...extras import is_installed
from ..watch import agreement
from .base import Display
from .history import History
from .silence import Silence
from .status import statuses
from .table import as_html, as_text

if TYPE_CHECKING:
    from ..watch.common import Watch

_PATIENCE_S = 1.0  # a shorter launch has no panel
_PAUSE_S = 0.2
_PLOT_PAUSE_S = 1.0
_SHARE = 1 / 250  # of a core that drawing may take; workers need the cores
_LONGEST_PAUSE_S = 5.0  # on a slow machine, too: what stands still seems to have ended

# The cell → the place of a panel whose launch ended well, and logged and printed nothing: the next one of that cell
# takes it, so that a cell with twenty launches does not leave twenty tables.
_vacated: dict[str, Any] = {}


def of(watch: Watch, name: str, started: float, device_type: str, is_quiet: bool) -> Hidden:
    """Return the display of a launch: a Panel in a notebook's cell, a Bar in a terminal, else Hidden."""
    history = History(started, device_type == "cuda")
    if is_quiet:
        return Hidden(watch, history)
    if notebook.is_watched() and notebook.is_in_cell():
        return Panel(watch, history, name)
    if sys.stderr is not None and sys.stderr.isatty() and not notebook.is_kernel():
        return Bar(watch, history, name)
    return Hidden(watch, history)


class Hidden(Display):
    """A display that shows nothing, but records the history."""

    def __init__(self, watch, history):
        super().__init__()
        self.history, self._watch = history, watch

    def _sample(self):
        self.history.sample(self._watch.rows, self._watch.pids)


class Bar(Hidden):
    """A tqdm progress bar, in a terminal."""

    def __init__(self, watch, history, name):
        super().__init__(watch, history)
        self._name, self._bar = name, None

    def _draw(self):
        if time.monotonic() - self.history.started < _PATIENCE_S:
            return
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(desc=self._name, unit=" steps")
            # It would divide the steps so far by the moment since it was made.
            self._bar.start_t -= time.monotonic() - self.history.started
            self._watch.output.make_way = self._bar.clear
        found = statuses(self._watch, self.history)
        slowest = min(found, key=lambda status: self._watch.rows.counts[status.rank])
        if slowest.total is not None:
            self._bar.total = slowest.total
        self._bar.n = self._watch.rows.counts[slowest.rank] if slowest.done is None else slowest.done
        self._bar.set_postfix_str(slowest.values, refresh=False)
        self._bar.refresh()

    def _finish(self, how):
        if self._bar is not None:
            self._draw()
            self._watch.output.make_way = None
            self._bar.close()


class Panel(Hidden):
    """A table with a row for each rank and a small plot, below the cell, once the launch has taken a second.

    It is HTML that is replaced, not a widget: every front end shows it, and a saved notebook holds what was shown last,
    whatever has become of the page and the kernel.
    """

    def __init__(self, watch, history, name):
        super().__init__(watch, history)
        self._name, started = name, history.started
        self._handle = self._drawn = None
        self._image = ""
        self._silences = [Silence(watch, rank) for rank in range(watch.world_size)]
        self._table_due, self._plot_due = started + _PATIENCE_S, started + _PATIENCE_S + _PLOT_PAUSE_S

    def _draw(self):
        now = time.monotonic()
        for silence in self._silences:
            silence.refresh()
        if now >= self._table_due:
            self._table_due = _timed(self._show, self._handle is None, _PAUSE_S)
        elif now >= self._plot_due:
            self._plot_due = _timed(self._plot, self._drawn is None, _PLOT_PAUSE_S)
        self.due = min(self.due, self._table_due, self._plot_due)

    def _hurry(self):
        if self._handle is not None:
            self._table_due = self.due = 0.0

    def _title(self, how=None):
        """Say how it ended, or that it was running, and when: a page that was loaded again is not told what follows."""
        n, seconds = self._watch.world_size, f"{time.monotonic() - self.history.started:.0f} s"
        told = f"running at {time.strftime('%H:%M:%S')} ({seconds})" if how is None else f"{how}, {seconds}"
        return f"{self._name} on {n} rank{'s' * (n > 1)}: {told}"

    def _show(self):
        found = statuses(self._watch, self.history, self._silences)
        title = self._title()
        notes = agreement.sentences(agreement.findings(self._watch.outcomes), agreement.NOW) + self._watch.rows.doubts
        bundle = {"text/html": as_html(found, title, notes) + self._image, "text/plain": as_text(found, title, notes)}
        if self._handle is None:
            self._handle = _vacated.pop(notebook.cell(), None)  # of an earlier launch of this cell
            _vacated.clear()
        if self._handle is not None:
            self._handle.update(bundle, raw=True)
            return
        from IPython.display import display

        self._handle = display(bundle, raw=True, display_id=True)

    def _plot(self):
        if not is_installed("matplotlib") or len(self.history.moments) < 2:
            return
        from .plot import Plot

        if self._drawn is None:
            self._drawn = Plot(self._watch.world_size)
        self._image = self._drawn.draw(self.history)

    def _finish(self, how):
        if self._handle is None:
            return
        # The error says what ranks disagree on; what follows a launch that finished says what was nan.
        notes = [] if how == "finished" else self._watch.rows.doubts
        shown = statuses(self._watch, self.history), self._title(how), notes
        if how == "failed":
            self._image = ""  # the error stands right below the table
        elif self._drawn is not None:
            self._plot()  # the curves to their end
        self._handle.update({"text/html": as_html(*shown) + self._image, "text/plain": as_text(*shown)}, raw=True)
        watch = self._watch
        if all(outcome.returned for outcome in watch.outcomes) and not any(watch.rows.counts + watch.output.counts):
            _vacated[notebook.cell()] = self._handle


def _timed(draw, is_first, pause_s):
    """Call `draw`, and return when to call it again; the first call's time, mostly imports, does not count."""
    began = time.thread_time()
    draw()
    took = 0 if is_first else time.thread_time() - began
    return time.monotonic() + max(pause_s, min(took / _SHARE, _LONGEST_PAUSE_S))
