"""Checkpoints of torch.distributed.checkpoint that are written no faster than at a given rate."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

from torch.distributed.checkpoint.filesystem import FileSystem

_PIECE = 1 << 20  # bytes, before time is spent
_LEAST_S = 0.005  # torch.save also writes hundreds of small pieces, and each sleep takes a little longer than it should


class PacedFileSystem(FileSystem):
    """Takes at most `bytes_per_s` from this process, as a shared storage does; the writing thread sleeps meanwhile.

    While a thread of `dcp.async_save` writes as fast as it can, it takes cores and memory from training. A checkpoint
    need only be complete before the next one begins, so it may be written slowly:

        writer = dcp.FileSystemWriter(folder)
        writer.fs = PacedFileSystem(25e6)
        pending = dcp.async_save(state, storage_writer=writer)

    `hurry` ends the waiting for good: call it before `pending.result()`.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._is_hurried = threading.Event()

    def hurry(self) -> None:
        """Write what is left at full speed."""
        self._is_hurried.set()

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as stream:
            if "w" not in mode:
                yield stream
                return
            paced = _PacedStream(stream, self.bytes_per_s, self.spend)
            yield paced
            paced.settle()

    def spend(self, seconds: float) -> None:
        """Sleep for the `seconds` by which pieces were written too fast."""
        self._is_hurried.wait(seconds)


class _PacedStream:
    """A binary stream that writes in pieces and spends time between them; all else is the stream's own."""

    def __init__(self, stream: IO[bytes], bytes_per_s: float, spend: Callable[[float], None]) -> None:
        self._stream, self._bytes_per_s, self._spend = stream, bytes_per_s, spend
        self._owed_s = 0.0  # by how much writing was too fast so far

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for begin in range(0, len(view), _PIECE):
            begin_s, piece = time.monotonic(), view[begin : begin + _PIECE]
            self._stream.write(piece)
            self._owed_s += len(piece) / self._bytes_per_s - (time.monotonic() - begin_s)
            if self._owed_s >= _LEAST_S:
                self.settle()
        return len(view)

    def settle(self) -> None:
        """Spend the time that is owed."""
        owed_s, self._owed_s = max(0.0, self._owed_s), 0.0
        self._spend(owed_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
