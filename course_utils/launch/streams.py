"""What ranks print: all of it is kept, a bounded excerpt of it is shown while they run.

A worker's two output streams are one pipe, at the level of file descriptors, so that C code and subprocesses are heard
too and the order of lines is the order in which they were written.
"""

import collections
import os
import sys
import time

_BURST_LINES = 200  # shown at once
_LINES_PER_S = 5  # and then this many more for every second that passes, so that slow talkers are never cut off
_TAIL_LINES = 10  # the last lines of a flood are always shown
_LINE_CHARS = 1_000
_READ_BYTES = 1 << 20


class Output:
    """Collects what `world_size` ranks print and shows an excerpt of it, each line marked `[rank 1]`."""

    def __init__(self, world_size, stream=None):
        self._stream = stream if stream is not None else sys.stdout
        self._chunks = [[] for _ in range(world_size)]
        self._partial = [[] for _ in range(world_size)]  # the pieces of a line that has begun and not ended
        self._tail = collections.deque(maxlen=_TAIL_LINES)  # the latest lines that were not shown
        self._left_out = 0
        self._allowance = float(_BURST_LINES)
        self._refilled = time.monotonic()

    def read(self, rank, fd):
        """Take what is in the pipe (non-blocking); return False once every writer has closed it."""
        try:
            chunk = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        self._chunks[rank].append(chunk)
        self._partial[rank].append(chunk)
        if b"\n" in chunk:
            *lines, rest = b"".join(self._partial[rank]).split(b"\n")
            self._partial[rank] = [rest]
            self._show(rank, lines)
        return True

    def finish(self):
        """Show the lines that never ended, and the tail of what was left out."""
        for rank, pieces in enumerate(self._partial):
            if line := b"".join(pieces):
                self._show(rank, [line])
            pieces.clear()
        shown = self._left_out_note(len(self._tail)) + [_marked(*line) for line in self._tail]
        self._tail.clear()
        self._write(shown)

    def log(self, rank):
        """Return all that `rank` has printed so far, as one string."""
        return b"".join(self._chunks[rank]).decode(errors="replace")

    def _show(self, rank, lines):
        now = time.monotonic()
        self._allowance = min(_BURST_LINES, self._allowance + (now - self._refilled) * _LINES_PER_S)
        self._refilled = now
        allowed = min(len(lines), int(self._allowance))
        self._allowance -= allowed
        if allowed:
            self._write(self._left_out_note(0) + [_marked(rank, line) for line in lines[:allowed]])
        held = lines[allowed:]
        self._left_out += len(held)
        self._tail.extend((rank, line) for line in held[-_TAIL_LINES:])

    def _left_out_note(self, but_for):
        """The line that stands for what was left out, all `but_for` the latest few, which the caller shows."""
        count, self._left_out = self._left_out - but_for, 0
        if not but_for:
            self._tail.clear()
        return [f"… {count:,} lines left out here; run.logs has them all …"] if count else []

    def _write(self, lines):
        if lines:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()


def _marked(rank, line):
    text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]  # what a progress bar shows in the end
    if len(text) > _LINE_CHARS:
        text = f"{text[:_LINE_CHARS]} … ({len(text) - _LINE_CHARS:,} more characters)"
    return f"[rank {rank}] {text}"
