"""Messages between two processes of this machine, with open files enclosed: pickles in frames over a socket pair."""

import pickle
import socket
import struct
from collections import deque

_HEADER = struct.Struct("<IB")  # bytes of the pickle, number of descriptors that come with it
_READ_BYTES = 1 << 16
_MOST_FDS = 16


class Channel:
    """One end. A sender's threads take care of their own order; one thread receives."""

    def __init__(self, end):
        self._socket = end
        self._bytes, self._fds = bytearray(), deque()

    def fileno(self):
        return self._socket.fileno()

    def send(self, message, fds=()):
        """Send a message, and copies of the descriptors `fds`. Raises OSError if the other end is gone."""
        pickled = pickle.dumps(message)
        frame = _HEADER.pack(len(pickled), len(fds)) + pickled
        if fds:
            sent = socket.send_fds(self._socket, [frame], fds)
            frame = frame[sent:]
        self._socket.sendall(frame)

    def receive(self, wait=True):
        """Return [(message, descriptors), …], all that one read brings: often none is complete yet, or several are.

        Raises EOFError once the other end is closed, and BlockingIOError if `wait` is False and nothing is there.
        """
        flags = 0 if wait else socket.MSG_DONTWAIT
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, _READ_BYTES, _MOST_FDS, flags)
        except ConnectionResetError:
            data, fds = b"", ()
        if not data:
            raise EOFError
        self._bytes += data
        self._fds.extend(fds)  # they come with the first byte of their message, so never later than it
        messages, begin = [], 0
        while len(self._bytes) >= begin + _HEADER.size:
            length, count = _HEADER.unpack_from(self._bytes, begin)
            end = begin + _HEADER.size + length
            if len(self._bytes) < end:
                break
            message = pickle.loads(memoryview(self._bytes)[begin + _HEADER.size : end])
            messages.append((message, [self._fds.popleft() for _ in range(count)]))
            begin = end
        del self._bytes[:begin]
        return messages

    def shutdown(self):
        """End the conversation, also for copies of this end that other processes hold."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._socket.close()
