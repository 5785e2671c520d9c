"""Output of a process, of any length, in bounded memory."""

import collections

_PIECE_BYTES = 1 << 16  # small chunks are joined up to this size


class Log:
    """The first and last `half_bytes` bytes of what was printed, and the number of bytes and lines in between."""

    def __init__(self, half_bytes):
        self._half_bytes = half_bytes
        self._head, self._tail = bytearray(), collections.deque()  # the tail is a queue of pieces
        self._tail_bytes = self._lost_bytes = self._lost_lines = 0

    def add(self, chunk):
        room = self._half_bytes - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if not chunk:
            return
        if self._tail and len(self._tail[-1]) + len(chunk) <= _PIECE_BYTES:
            self._tail[-1] += chunk
        else:
            self._tail.append(bytearray(chunk))
        self._tail_bytes += len(chunk)
        while self._tail_bytes - len(self._tail[0]) >= self._half_bytes:
            lost = self._tail.popleft()
            self._tail_bytes -= len(lost)
            self._lost_bytes += len(lost)
            self._lost_lines += lost.count(b"\n")

    def __str__(self):
        head, tail = bytes(self._head), b"".join(self._tail)
        if not self._lost_bytes:
            return (head + tail).decode(errors="replace")
        cut, newline, rest = tail.partition(b"\n")
        if newline:  # drop a line whose beginning is lost
            tail = rest
        size = (self._lost_bytes + len(cut) if newline else self._lost_bytes) / 1e6
        note = f"\n… {self._lost_lines + bool(newline):,} lines ({size:,.0f} MB) are not kept …\n"
        return head.decode(errors="replace") + note + tail.decode(errors="replace")
