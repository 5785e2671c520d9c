"""Progress of a step: a bar in a terminal, or a line now and then if output goes to a file."""

import shutil
import sys
import time

LINE_EVERY_S = 30
_WIDTH = 24


class Bar:
    """The progress of one step; `expected` is {test: seconds of the last run}, used to estimate the remaining time."""

    def __init__(self, name, expected, out=sys.stdout):
        self.name, self.expected, self.out = name, expected, out
        self.total, self.done, self.failed = 0, 0, 0
        self._spent_s, self._begin_s, self._shown_s = 0.0, time.monotonic(), 0.0
        self._moves = out.isatty()

    def expect(self, total):
        self.total = total
        self.show()

    def add(self, test, outcome):
        self.done, self.failed = self.done + 1, self.failed + (outcome == "failed")
        self._spent_s += self.expected.get(test, 0.0)
        self.show()

    def show(self, last=False):
        now = time.monotonic()
        if not last and now < self._shown_s + (0.2 if self._moves else LINE_EVERY_S):
            return
        self._shown_s = now
        print(self.line(now), end="\r" if self._moves and not last else "\n", file=self.out, flush=True)

    def line(self, now):
        share = min(1.0, self.done / self.total) if self.total else 0.0
        filled = round(_WIDTH * share)
        failed = f", {self.failed} failed" if self.failed else ""
        text = f"{self.name:10s}[{'#' * filled}{'.' * (_WIDTH - filled)}] {self.done:,} of {self.total:,}{failed}"
        return f"{text}, {self.time(now)}".ljust(min(100, shutil.get_terminal_size().columns - 1))

    def time(self, now):
        """The remaining time in words, estimated from the last run, else the elapsed time."""
        whole_s, gone_s = sum(self.expected.values()), now - self._begin_s
        if not whole_s or self._spent_s < whole_s / 50 or self.done >= self.total:
            return f"{minutes(gone_s)} so far" if self.done < self.total else minutes(gone_s)
        return f"about {minutes(gone_s * (whole_s / self._spent_s - 1))} left"


def minutes(seconds):
    """Return `seconds` in words: "42 s", "3 min 05 s"."""
    seconds = round(seconds)
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60:02d} s"
