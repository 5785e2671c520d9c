"""Checkpoints of torch.distributed.checkpoint that are written no faster than at a given rate."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import IO, Any

from torch.distributed.checkpoint.filesystem import FileSystem

_PIECE = 1 << 20  # bytes between two waits


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
        self._bytes_per_s = bytes_per_s
        self._is_hurried = threading.Event()

    def hurry(self) -> None:
        """Write what is left at full speed."""
        self._is_hurried.set()

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as stream:
            yield _PacedStream(stream, self._wait) if "w" in mode else stream

    def _wait(self, num_bytes: int, begin_s: float) -> None:
        """Wait until `num_bytes` may have been taken since `begin_s` of `time.monotonic`."""
        left_s = begin_s + num_bytes / self._bytes_per_s - time.monotonic()
        if left_s > 0:
            self._is_hurried.wait(left_s)


class _PacedStream:
    """A binary stream that writes in pieces and waits after each; all else is the stream's own."""

    def __init__(self, stream: IO[bytes], wait: Any) -> None:
        self._stream, self._wait = stream, wait

    def write(self, data: Any) -> int:
        begin_s, view = time.monotonic(), memoryview(data).cast("B")
        for begin in range(0, len(view), _PIECE):
            self._stream.write(view[begin : begin + _PIECE])
            self._wait(min(begin + _PIECE, len(view)), begin_s)
        return len(view)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
