"""A worker's thread that receives the notebook's messages while the worker computes or waits in C++."""

import os
import queue
import signal
import threading
from typing import Any

from ..forkserver import rendezvous
from ..forkserver.protocol import Describe, Described, Interrupt, Locate, Located, Recall, Recalled
from . import frames, recorder


class Listener:
    """Answers Describe, Locate, Recall and Interrupt itself, and queues other messages for the worker's main thread.

    `send(message)` must be safe to call from any thread. The thread ends when the channel is closed.
    """

    def __init__(self, channel, send):
        self._channel, self._send = channel, send
        self._messages = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="course listener", daemon=True).start()

    def next(self) -> tuple[Any, list[int]]:
        """Wait for a message, and return (message, descriptors). Raises EOFError if the notebook has ended."""
        found = self._messages.get()
        if found is None:
            self._messages.put(None)
            raise EOFError
        return found

    def _listen(self):
        try:
            while True:
                for message, fds in self._channel.receive():
                    if isinstance(message, Describe):
                        self._send(Described(frames.of_main_thread()))
                    elif isinstance(message, Locate):
                        self._send(Located(frames.of_main_thread(with_locals=False), rendezvous.collectives()))
                    elif isinstance(message, Recall):
                        self._send(Recalled(recorder.now()))
                    elif isinstance(message, Interrupt):
                        os.kill(os.getpid(), signal.SIGINT)
                    else:
                        self._messages.put((message, fds))
        except (EOFError, OSError):
            self._messages.put(None)
