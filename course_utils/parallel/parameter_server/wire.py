"""What a message looks like: a header of four numbers, which keys or rows it is about,
and their values in one piece.
"""

import torch

from .. import messages

PULL, PUSH, ADD, LEAVE = range(4)  # what a worker wants
DONE, GONE, OVER = range(3)  # what a server answers
HAND_OVER, NEVER = range(2)  # what a server tells a spare
HEADER_BYTES = 4 * 8
# The end of the other process ends every wait for a header. It does not end a wait for what gloo is just then writing
# or reading, so headers have a tag of their own, the rest comes in chunks, and who has nobody to tell it waits for each
# with
# patience: PATIENCE_S seconds.
PATIENCE_S = 5.0
_BODY = 1  # the tag
_CHUNK = 1 << 18  # elements

WHOLE = -1  # in place of a number of rows


class Lost(ConnectionError):
    """The other rank has ended."""


def send(dst, what, number=0, about=None, values=None, patience_s=None):
    """Send rank `dst` a header, then the int64 tensor `about` and the tensor `values`, if there are any.

    Raises Lost.
    """
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
    """What rank `src` sends next: what it wants, a number, and how many elements `about` and `values` have.

    Raises Lost.
    """
    header = torch.empty(4, dtype=torch.int64)
    try:
        messages.recv(header, src)
    except RuntimeError as error:
        raise Lost(f"rank {src}") from error
    return header.tolist()


def recv(src, num, dtype, patience_s=None):
    """A new tensor of `num` elements, what comes next of a message of rank `src` after its header. Raises Lost."""
    tensor = torch.empty(num, dtype=dtype)
    try:
        for chunk in tensor.split(_CHUNK):
            messages.recv(chunk, src, _BODY, patience_s)
    except RuntimeError as error:
        raise Lost(f"rank {src}") from error
    return tensor


def describe(held, rows):
    """What `read` reads: for each of the keys in `rows`, its place among `held`, how many rows are meant, and which.

    `rows` is {key: int64 tensor, or None for the whole key}. None stands for all of `held`, whole, and takes no bytes.
    """
    if list(rows) == held and not any(which is not None for which in rows.values()):
        return torch.empty(0, dtype=torch.int64)
    parts = []
    for name, which in rows.items():
        parts.append(torch.tensor([held.index(name), WHOLE if which is None else len(which)]))
        parts += [] if which is None else [which.cpu()]
    return torch.cat(parts) if parts else torch.tensor([WHOLE])


def read(held, about):
    """{key: int64 tensor of rows, or None for the whole key}, from what `describe` made."""
    if not len(about):
        return dict.fromkeys(held)
    rows, begin = {}, 0
    while begin + 1 < len(about):
        place, num = about[begin : begin + 2].tolist()
        begin += 2
        rows[held[place]] = None if num == WHOLE else about[begin : begin + num]
        begin += max(num, 0)
    return rows
