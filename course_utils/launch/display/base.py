"""What is refreshed while ranks are watched. A picture must not end a launch, whatever stops it from being drawn."""

import sys
import time
from typing import Any


class Display:
    """`refresh` is called as often as you like; `due`, a moment of time.monotonic(), is when it has something to do.

    Subclasses draw in `_draw`, sooner after `_hurry`, and for the last time in `_finish`. Where one of these raises,
    `trouble` is the error, and nothing more is drawn but the end.
    """

    pause_s = 0.25

    def __init__(self):
        self.trouble, self.due = None, time.monotonic() + self.pause_s

    def refresh(self) -> None:
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + self.pause_s
            self._guard(self._sample)  # even if nothing can be drawn: the history is to be whole
            self._try(self._draw)

    def hurry(self) -> None:
        """Have the next refresh come at once: a rank has failed."""
        self._try(self._hurry)

    def catch_up(self) -> None:
        """Show what is held back: a prompt is about to follow."""
        self._try(self._catch_up)

    def finish(self, *how: Any) -> None:
        """Leave what is to stay. Says on stderr if something could not be drawn."""
        self._guard(self._finish, *how)
        if self.trouble is not None:
            print(f"What is shown of the ranks could not be drawn: {self.trouble!r}", file=sys.stderr)

    def _try(self, action):
        if self.trouble is None:
            self._guard(action)

    def _guard(self, action, *args):
        try:
            action(*args)
        except Exception as error:
            self.trouble = self.trouble or error

    def _sample(self):
        pass

    def _draw(self):
        pass

    def _hurry(self):
        pass

    def _catch_up(self):
        pass

    def _finish(self, *how):
        pass
