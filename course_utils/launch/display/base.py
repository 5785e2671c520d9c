"""The base class of displays that are refreshed while ranks run: an error in drawing must not end a launch."""

import sys
import time
from typing import Any


class Display:
    """A display; `refresh` may be called at any time, and does nothing before `due`, a time of time.monotonic().

    Subclasses draw in `_draw`, sooner after `_hurry`, and for the last time in `_finish`. If one of these raises,
    `trouble` is the error, and after that only `_finish` is called.
    """

    pause_s = 0.25

    def __init__(self):
        self.trouble, self.due = None, time.monotonic() + self.pause_s

    def refresh(self) -> None:
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + self.pause_s
            self._guard(self._sample)  # even after a drawing error, to complete the history
            self._try(self._draw)

    def hurry(self) -> None:
        """Make the next refresh due at once: a rank has failed."""
        self._try(self._hurry)

    def catch_up(self) -> None:
        """Show output that is held back, before a debugger's prompt."""
        self._try(self._catch_up)

    def finish(self, *how: Any) -> None:
        """Draw the final state, and report a drawing error on stderr."""
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
