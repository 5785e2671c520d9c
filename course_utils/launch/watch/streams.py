"""What ranks print: an excerpt of limited length is shown while they run, the beginning and end are kept.

A worker's two output streams are one pipe, at the level of file descriptors. This includes C code and subprocesses, and
keeps the lines in the order in which they were written.
"""

import collections
import os
import re
import sys
import time

from ...processes.log import Log

_KEPT_BYTES = 32 << 20  # of all ranks together, half of it for beginnings, half for ends
_BURST_LINES = 200  # shown at once
_LINES_PER_S = 5  # allowed per second after that, so slow output is never cut
_TAIL_LINES = 10  # the last lines are always shown
_LINE_CHARS = 1_000
_LATEST_BYTES = 2_000
_OPEN_LINE_BYTES = 1 << 16  # kept of a line that has not ended
_READ_BYTES = 1 << 20
_ESCAPES = re.compile("\x1b\\[[0-9;?]*[ -/]*[@-~]")


def as_on_a_terminal(text: str) -> str:
    """Return `text` as a terminal would finally show it: without escape sequences and overwritten text."""
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in _ESCAPES.sub("", text).split("\n"))


class Output:
    """Collects what `world_size` ranks print and shows an excerpt of it, each line marked `[rank 1]`.

    `stream` is where it is shown, by default sys.stdout. `logs` is the student's name for the full output, in messages.

    If a write to the stream fails, `trouble` is the error, and nothing more is shown.
    """

    def __init__(self, world_size, stream=None, logs="run.logs"):
        self._where_more_is = logs
        self._stream = stream if stream is not None else sys.stdout
        self.trouble = None
        self.make_way = None  # called before lines are shown, to clear a progress bar
        self._logs = [Log(_KEPT_BYTES // 2 // world_size) for _ in range(world_size)]
        self._latest = [b""] * world_size  # the end of each rank's output
        self.counts = [0] * world_size  # non-empty reads of each rank
        self._open = [b""] * world_size  # the line that has not ended; of a long one the beginning
        self._cut_bytes = [0] * world_size  # bytes cut from that line
        self._tail = collections.deque(maxlen=_TAIL_LINES)  # the latest lines not shown
        self._left_out = 0
        self._allowance = float(_BURST_LINES)
        self._refilled = time.monotonic()

    def read(self, rank: int, fd: int) -> bool:
        """Read what is in the non-blocking pipe `fd`; return False once every writer has closed it."""
        try:
            chunk = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        self._logs[rank].add(chunk)
        self.counts[rank] += 1
        self._latest[rank] = (self._latest[rank] + chunk[-_LATEST_BYTES:])[-_LATEST_BYTES:]
        first, *others = chunk.split(b"\n", 1)
        self._prolong(rank, first)
        if others:
            lines, newline, rest = others[0].rpartition(b"\n")
            self._show(rank, self._end_line(rank), lines.split(b"\n") if newline else [])
            self._prolong(rank, rest)
        return True

    def finish(self) -> None:
        """Show the lines that never ended, and the tail of what was left out."""
        for rank, begun in enumerate(self._open):
            if begun:
                self._show(rank, self._end_line(rank), [])
        shown = self._left_out_note(len(self._tail)) + [_marked(*line) for line in self._tail]
        self._tail.clear()
        self._write(shown)

    def log(self, rank: int) -> str:
        """Return what `rank` has printed so far, as one string; if it is very long, its beginning and end."""
        return str(self._logs[rank])

    def latest_line(self, rank: int) -> str:
        """Return the last line that `rank` has printed, complete or not; of a progress bar what it shows now."""
        lines = map(str.strip, as_on_a_terminal(self._latest[rank].decode(errors="replace")).split("\n"))
        return next(filter(None, reversed(list(lines))), "")

    def _prolong(self, rank, piece):
        """Append `piece` to the line that has not ended; of a very long line keep only what will be shown."""
        line = self._open[rank] + piece
        if len(line) > _OPEN_LINE_BYTES:
            _, overwrites, line = line.rstrip(b"\r").rpartition(b"\r")  # a progress bar's last text
            kept = line[: 4 * _LINE_CHARS]  # a character takes up to four bytes
            self._cut_bytes[rank] = (0 if overwrites else self._cut_bytes[rank]) + len(line) - len(kept)
            line = kept
        self._open[rank] = line

    def _end_line(self, rank):
        line, cut = self._open[rank], self._cut_bytes[rank]
        self._open[rank], self._cut_bytes[rank] = b"", 0
        return line, cut

    def _show(self, rank, first, lines):
        """Show `first`, a line as (text, number of bytes cut), and `lines`, as far as the allowance permits."""
        now = time.monotonic()
        self._allowance = min(_BURST_LINES, self._allowance + (now - self._refilled) * _LINES_PER_S)
        self._refilled = now
        lines = [first, *((line, 0) for line in lines)]
        allowed = min(len(lines), int(self._allowance))
        self._allowance -= allowed
        if allowed:
            self._write(self._left_out_note(0) + [_marked(rank, *line) for line in lines[:allowed]])
        held = lines[allowed:]
        self._left_out += len(held)
        self._tail.extend((rank, *line) for line in held[-_TAIL_LINES:])

    def _left_out_note(self, but_for):
        """Return the line that says how many lines were left out, not counting the last `but_for`, shown by the caller.

        It is in a list, which is empty if none were left out.
        """
        count, self._left_out = self._left_out - but_for, 0
        if not but_for:
            self._tail.clear()
        return [f"… {count:,} lines left out here; {self._where_more_is} has more …"] if count else []

    def _write(self, lines):
        if not lines or self.trouble is not None or self._stream is None:  # sys.stdout may be None
            return
        try:
            if self.make_way is not None:
                self.make_way()
            self._stream.write("\n".join(lines) + "\n")
            if hasattr(self._stream, "flush"):  # a replaced sys.stdout may have only write()
                self._stream.flush()
        except Exception as error:  # such as a full disk or a closed stream
            self.trouble = error


def _marked(rank, line, cut_bytes=0):
    text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]  # a progress bar's last text
    if len(text) > _LINE_CHARS or cut_bytes:
        text = f"{text[:_LINE_CHARS]} … ({max(0, len(text) - _LINE_CHARS) + cut_bytes:,} more characters)"
    return f"[rank {rank}] {text}"
