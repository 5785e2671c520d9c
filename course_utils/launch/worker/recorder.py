"""Reads what this worker has called in torch.distributed, at any time, even while it waits in C++.

torch keeps the latest 2000 collectives of a process in its flight recorder, whoever called them, as DDP does in C++;
this only reads them. Of gloo it does not keep messages between two ranks, so `take_over` wraps the three functions that
begin one, which costs a microsecond or two a message.
"""

import dataclasses
import functools
import os
import pickle
import re
import sys
import threading
import time
import weakref
from collections import Counter, deque
from typing import Any, NamedTuple

from .calls import Calls, Collective, Group, Message

_MOST_OF_A_GROUP = 32  # collectives told, the latest
_MOST_AT_END = 100  # recorded, of which a rank that returns tells: reading more takes longer than a millisecond
_MOST_MESSAGES = 256
_DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "ComplexFloat": "complex64"}  # by the recorder's
_DTYPES |= {"Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64"}
# In the message of debug mode, a rank's own collective comes first; a barrier has no tensor.
_FINGERPRINT = re.compile(
    r"^Detected mismatch between collectives on ranks.*?CollectiveFingerPrint\(SequenceNumber=(\d+)(?:, )?OpType=(\w+)"
    r"(?:, TensorShape=\[([\d, ]*)\], TensorDtypes=(\w*))?"
)
# Kinds by what is in the backend's name for them, in this order: nccl:all_reduce_barrier is a barrier.
_KINDS = "barrier all_reduce all_gather all_to_all reduce_scatter broadcast reduce gather scatter".split()

# The port of the store by which this process last joined a default group, the number of groups joined by it, and when:
# then torch begins to name groups anew.
_epoch, _since_ns = ("", 0), 0
_lock = threading.Lock()  # several threads may send
_counts: Counter[tuple[str, int | None, str, int]] = Counter()
_notes: deque[list[Any]] = deque(maxlen=_MOST_MESSAGES)  # [key, number, shape, dtype, began, reference to its Work]


class _Called(NamedTuple):
    """A function of torch.distributed that has not returned; `inner` is all_gather if all_gather_object has called it.

    `root` is a rank in the group, or None.
    """

    name: str
    inner: str
    group: str
    root: int | None


class Record(NamedTuple):
    """What a process has called, not read yet, which takes longer; the fields are those of Calls, but for two.

    `dumps` are of torch's recorders, which may still have entries from before `since_ns`, of another epoch.
    """

    at: float
    epoch: tuple[str, int]
    since_ns: int
    dumps: tuple[bytes, ...]
    members: dict[str, tuple[int, ...]]
    messages: tuple[Message, ...]
    counts: dict[tuple[str, int | None, str, int], int]


def begin_anew() -> None:
    """Forget earlier calls: the process is about to join a default group."""
    global _epoch, _since_ns
    port, (last_port, count) = os.environ.get("MASTER_PORT", ""), _epoch
    _epoch, _since_ns = (port, count + 1 if port == last_port else 1), time.time_ns()
    with _lock:
        _counts.clear()
        _notes.clear()


def take_over() -> None:
    """Have this process note its messages, in torch's class of process groups, which all functions call."""
    from torch.distributed import ProcessGroup

    usual_send, usual_recv, usual_any = ProcessGroup.send, ProcessGroup.recv, ProcessGroup.recv_anysource

    @functools.wraps(usual_send)
    def send(self, tensors, dstRank, tag):
        return _noted(("send", dstRank, self.group_name, tag), tensors, lambda: usual_send(self, tensors, dstRank, tag))

    @functools.wraps(usual_recv)
    def recv(self, tensors, srcRank, tag):
        return _noted(("recv", srcRank, self.group_name, tag), tensors, lambda: usual_recv(self, tensors, srcRank, tag))

    @functools.wraps(usual_any)
    def recv_anysource(self, tensors, tag):
        return _noted(("recv", None, self.group_name, tag), tensors, lambda: usual_any(self, tensors, tag))

    ProcessGroup.send, ProcessGroup.recv, ProcessGroup.recv_anysource = send, recv, recv_anysource


def _noted(key, tensors, begin):
    """Return `begin()`, a message's Work, and note the message; the note keeps neither Work nor tensors alive."""
    note = [key, 0, tensors[0].shape, tensors[0].dtype, time.time(), None]
    with _lock:
        _counts[key] += 1
        note[1] = _counts[key]
        _notes.append(note)
    work = None
    try:
        work = begin()
    finally:
        note[-1] = _gone if work is None else weakref.ref(work)
    return work


def _gone():
    """Stands in for the reference to a Work that there is not, or not any more."""


def at_end() -> Record | None:
    """Return what this process has called, as it ends; None if there is none, or too much for a moment."""
    try:
        world = sys.modules["torch.distributed.distributed_c10d"]._world
        called = sum(group._get_sequence_number_for_group() for group in world.pg_names)
        if not called:  # or it has left its groups
            status = pickle.loads(_c10d()._dump_fr_trace(False, False, False))["pg_status"]
            called = sum(each["last_enqueued_collective"] for each in status.values())
        return _record() if called <= _MOST_AT_END else None
    except Exception:  # no torch.distributed, or a newer one
        return None


def now(error: BaseException | None = None) -> Calls:
    """Return what this process has called so far, or by when it raised `error`; may be called from any thread."""
    try:
        called = _called(_innermost(error))
        return _with_refused(read(_record(), called), called, error)
    except Exception:  # no torch.distributed, or a newer one; without it an error only says less
        return Calls(time.time())


def _with_refused(calls, called, error):
    """Add the collective that debug mode refused with `error`: it has not begun, so the recorder does not have it."""
    print_of_own = called and _FINGERPRINT.search(str(error))
    if not print_of_own:
        return calls
    number, title, shape, dtype = print_of_own.groups(default="")
    members = calls.members.get(called.group, ())
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    group = Group(called.group, "", members, world.pg_names.get(world.default_pg) == called.group)
    ran, shapes = _kind(title), (tuple(map(int, shape.split(","))),) if dtype else ()
    dtype = _DTYPES.get(dtype, dtype.lower())
    refused = Collective(ran, group, int(number) + 1, shapes, dtype, False, calls.at, ran)
    (refused,) = _with_names([refused], calls.members, called)
    return dataclasses.replace(calls, collectives=(*calls.collectives, refused), was_refused=True)


def read(record: Record, called: _Called | None = None) -> Calls:
    """Return the Calls of a Record; `called` is the function in which the process was."""
    try:
        return _calls(record, called)
    except Exception:  # a newer torch records otherwise
        return Calls(record.at)


def _calls(record, called):
    found, is_whole = [], True
    for dump in record.dumps:
        entries = pickle.loads(dump).get("entries", [])
        is_whole &= not entries or entries[0]["record_id"] == 0
        counted = [each for each in entries if not each["is_p2p"] and each["time_created_ns"] >= record.since_ns]
        found += [_collective(each, record.members) for each in counted]
    found.sort(key=lambda each: each.began)
    latest, counts = [], Counter()
    for each in _with_names(found, record.members, called)[::-1]:
        counts[each.group.key] += 1
        if counts[each.group.key] <= _MOST_OF_A_GROUP:
            latest.insert(0, each)
    return Calls(record.at, record.epoch, tuple(latest), record.members, is_whole, record.messages, record.counts)


def _record():
    at, members = time.time(), _members()
    dumps = [_c10d()._dump_fr_trace(True, False, False)]
    if sys.modules["torch"].cuda.is_initialized():
        dumps.append(_c10d()._dump_nccl_trace(True, False, False))
    return Record(at, _epoch, _since_ns, tuple(dumps), members, *_messages(members))


def _c10d() -> Any:
    return sys.modules["torch"]._C._distributed_c10d


def _members():
    """Return {group's name: ranks of its members, by their rank in the group} of the groups that this rank is in."""
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    numbered = {name: world.pg_group_ranks[group] for group, name in world.pg_names.items()}
    return {name: tuple(sorted(ranks, key=ranks.get)) for name, ranks in numbered.items()}


def _collective(entry, members):
    """Return the Collective of a recorder's entry."""
    backend, _, title = entry["profiling_name"].partition(":")
    name, description = entry["process_group"]
    ran = _kind(title)
    side = "output" if ran == "scatter" else "input"  # only the root of a scatter has an input
    dtypes = entry[f"{side}_dtypes"]
    return Collective(
        kind=ran,
        group=Group(name, backend, members.get(name, ()), description == "default_pg"),
        number=entry["collective_seq_id"],
        shapes=tuple(map(tuple, entry[f"{side}_sizes"])),
        dtype=_DTYPES.get(dtypes[0], dtypes[0].lower()) if dtypes else "",
        is_done=entry["retired"] or entry["state"] == "completed",
        began=entry["time_created_ns"] / 1e9,
        ran=ran,
    )


def _kind(title):
    return next((kind for kind in _KINDS if kind.replace("_", "") in title.lower().replace("_", "")), title)


def _with_names(found, members, called):
    """Return the Collectives, the one that was `called` with the name by which it was called, and with its root.

    The recorder knows neither: gloo's reduce_scatter calls an all_reduce.
    """
    latest = next((i for i in reversed(range(len(found))) if called and found[i].group.name == called.group), None)
    if latest is None:
        return found
    each = found[latest]
    if each.ran in called.inner or "reduce_scatter" in called.inner:
        ranks = members.get(each.group.name, ())
        root = ranks[called.root] if called.root in range(len(ranks)) else None
        found[latest] = dataclasses.replace(each, kind=called.name, root=root)
    return found


def _innermost(error):
    """Return the frame in which `error` was raised, or without one, that in which the main thread is now."""
    if error is None:
        return sys._current_frames().get(threading.main_thread().ident or 0)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace and trace.tb_frame


def _called(frame):
    """Return the _Called to which a thread's innermost frame belongs, None if it is of another module."""
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    files = (c10d.__file__, sys.modules["torch.distributed.c10d_logger"].__file__)  # the latter wraps each function
    if frame is None or frame.f_code.co_filename != c10d.__file__:
        return None
    inner, values = frame.f_code.co_name, frame.f_locals
    name, group = inner, _name_of(values.get("group") or c10d.group.WORLD)
    while frame is not None and frame.f_code.co_filename in files:
        if frame.f_code.co_filename == c10d.__file__:
            name = frame.f_code.co_name
        frame = frame.f_back
    return _Called(name, inner, group, getattr(values.get("opts"), "rootRank", None))


def _name_of(group):
    return sys.modules["torch.distributed.distributed_c10d"]._world.pg_names.get(group)


def _messages(members):
    """Return the Messages that are not done, and {(kind, peer, group, tag): number} of all, of the groups `members`."""
    with _lock:
        notes, counts = [list(note) for note in _notes], dict(_counts)
    default = _name_of(sys.modules["torch.distributed.distributed_c10d"].group.WORLD)
    waiting = []
    for key, number, shape, dtype, began, reference in notes:
        if key[2] in members and (reference is None or not _is_done(reference())):
            kind, peer, name, tag = _globally(key, members)
            group = Group(name, "", members[name], name == default)
            dtype = str(dtype).removeprefix("torch.")
            waiting.append(Message(kind, peer, group, tag, number, tuple(shape), dtype, began))
    return tuple(waiting), {_globally(key, members): n for key, n in counts.items() if key[2] in members}


def _is_done(work):
    return work is None or work.is_completed()


def _globally(key, members):
    kind, peer, group, tag = key
    return kind, None if peer is None else members[group][peer], group, tag
