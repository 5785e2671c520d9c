"""The message format: a header of four numbers, the keys or rows concerned, and their values, concatenated."""

import torch

from .. import messages

PULL, PUSH, ADD, LEAVE = range(4)  # worker's request
DONE, GONE, OVER = range(3)  # server's answer
HAND_OVER, NEVER = range(2)  # server's message to a spare
HEADER_BYTES = 4 * 8
# If the other process ends, a wait for a header ends too, but not a wait for a transfer that gloo has begun. So headers
# have their own tag, bodies come in chunks, and a rank that would not learn of the end waits at most PATIENCE_S for
# each.
PATIENCE_S = 5.0
_BODY = 1  # tag of the body
_CHUNK = 1 << 18  # elements

WHOLE = -1  # stands for the number of rows of a whole key


class Lost(ConnectionError):
    """The other rank has ended."""


def send(dst, what, number=0, about=None, values=None, patience_s=None):
    """Send rank `dst` a header, then the int64 tensor `about` and the tensor `values`, if given; may raise Lost."""
    parts = [part for part in (about, values) if part is not None]
    header = torch.tensor([what, number, *(0 if part is None else part.numel() for part in (about, values))])
    try:
        messages.send(header, dst)
        for part in parts:
            for chunk in part.split(_CHUNK):
                messages.send(chunk, dst, _BODY, patience_s)
    except RuntimeError as error:
        raise Lost(f"rank {dst}") from error


def recv_header(src):
    """Rank `src`'s next header: the request, a number, the element counts of `about` and `values`; may raise Lost."""
    header = torch.empty(4, dtype=torch.int64)
    try:
        messages.recv(header, src)
    except RuntimeError as error:
        raise Lost(f"rank {src}") from error
    return header.tolist()


def recv(src, num, dtype, patience_s=None):
    """A new tensor of `num` elements, the next part of the body from rank `src`; may raise Lost."""
    tensor = torch.empty(num, dtype=dtype)
    try:
        for chunk in tensor.split(_CHUNK):
            messages.recv(chunk, src, _BODY, patience_s)
    except RuntimeError as error:
        raise Lost(f"rank {src}") from error
    return tensor


def describe(held, rows):
    """Encode `rows` for `read`: for each key its position in `held`, its number of rows, and the rows.

    `rows` is {key: int64 tensor, or None for the whole key}. All keys of `held`, whole, give an empty tensor.
    """
    if list(rows) == held and not any(which is not None for which in rows.values()):
        return torch.empty(0, dtype=torch.int64)
    parts = []
    for name, which in rows.items():
        parts.append(torch.tensor([held.index(name), WHOLE if which is None else len(which)]))
        parts += [] if which is None else [which.cpu()]
    return torch.cat(parts) if parts else torch.tensor([WHOLE])


def read(held, about):
    """Decode what `describe` made: {key: int64 tensor of rows, or None for the whole key}."""
    if not len(about):
        return dict.fromkeys(held)
    rows, begin = {}, 0
    while begin + 1 < len(about):
        place, num = about[begin : begin + 2].tolist()
        begin += 2
        rows[held[place]] = None if num == WHOLE else about[begin : begin + num]
        begin += max(num, 0)
    return rows
