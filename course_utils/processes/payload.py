"""Objects on their way between the notebook and its workers, in anonymous shared memory.

A function or a result is pickled by cloudpickle (which takes functions, lambdas and classes of a cell along by
value). Arrays and tensors are not copied into the pickle: their bytes lie behind it in the same file, and the
receiver maps them in place. So four workers that receive one data set share one copy of it, until one of them writes
to its own (the mapping is private), and a result of a gigabyte needs no pipe to be drained.

What comes from the notebook's `__main__` comes into the receiver's, where that is asked for: what pickles by name there
(a queue, a DataLoader's process, torch.save) finds it under the notebook's names.
"""

import functools
import importlib
import io
import mmap
import os
import pickle
import shutil
import struct
import sys
import tempfile
import types

import cloudpickle

from . import bound, carry, shared

_ALIGNMENT = 64  # bytes; a vectorised kernel may read a tensor with aligned loads


def anonymous_file(name):
    """Return the descriptor of a file that has no name on disk and vanishes with its last user."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:  # macOS
        return os.dup(file.fileno())


class Pickler(cloudpickle.Pickler):
    """cloudpickle, under which code keeps the name of its file: without it an error has no lines of the student's.

    cloudpickle 3.1.3 takes it away.
    """

    def reducer_override(self, obj):
        if isinstance(obj, types.CodeType):
            make, parts = cloudpickle.Pickler.dispatch_table[types.CodeType](obj)
            return _of_file, (obj.co_filename, make, parts)
        return super().reducer_override(obj)


def _of_file(name, make, parts):
    return make(*parts).replace(co_filename=name)


class _Pickler(Pickler):
    """cloudpickle that moves tensors' bytes out of band and brings CUDA tensors to the CPU."""

    def __init__(self, file, buffer_callback, keeps_shared=False, name_of=None):
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self._storages, self._main, self._keeps_shared, self._name_of = {}, None, keeps_shared, name_of
        self.num_shared = 0  # bytes that stay shared or mapped

    def _function_getnewargs(self, func):
        code, names, *others = super()._function_getnewargs(func)
        if func.__globals__ is sys.modules["__main__"].__dict__:
            self._main = self._main or _NamesOfMain(names)
            names = self._main
        return (code, names, *others)

    def reducer_override(self, obj):
        if self._name_of is not None and (name := self._name_of(obj)) is not None:
            return name
        if isinstance(obj, types.ModuleType) and type(obj) is not types.ModuleType:  # cloudpickle knows only plain ones
            return importlib.import_module, (obj.__name__,)  # torch.backends.cudnn, for one
        bound.require_unbound(obj)
        if (carried := carry.anew(obj)) is not None:
            return carried
        if self._keeps_shared and (mapped := shared.array(obj)) is not None:
            self.num_shared += obj.nbytes
            return mapped
        torch = sys.modules.get("torch")  # where it is not imported, nothing is a tensor's
        if torch is not None and isinstance(obj, torch.storage.TypedStorage):
            # Views of one storage each bring a new TypedStorage: without this memo the bytes would travel once a view.
            key = (obj._untyped_storage._cdata, obj.dtype)
            first = self._storages.setdefault(key, obj)
            if first is not obj:
                return _same, (first,)
            if self._keeps_shared and (mapped := shared.storage(obj._untyped_storage)) is not None:
                self.num_shared += obj._untyped_storage.nbytes()
                return _of_shared, (*mapped, obj.dtype)
            return _rebuild_storage, (pickle.PickleBuffer(_bytes_of(obj)), obj.dtype)
        return super().reducer_override(obj)


class _Unpickler(pickle.Unpickler):
    """Leaves the classes alone that the notebook has already.

    cloudpickle sends a cell's class along with its instances, and what arrives would otherwise be written over the
    notebook's own class: its methods then see copies of the globals, and its attributes are the worker's. In a rank,
    though, which is given `names`, they are written over, or its methods would see the globals of an earlier request.
    """

    def __init__(self, file, buffers, names):
        super().__init__(file, buffers=buffers)
        self._own = set(cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS if names is None else ())
        self._names = {} if names is None else names

    def find_class(self, module, name):
        found = super().find_class(module, name)
        if found is _into_main:
            return self._into_main
        if not module.startswith("cloudpickle"):
            return found
        if name in ("_make_skeleton_class", "_make_skeleton_enum"):
            return functools.partial(_known_or_made, found)
        if name == "_class_setstate":
            return lambda cls, state: cls if cls in self._own else self._known(found(cls, state))
        if name == "_function_setstate":
            return lambda function, state: self._known(found(function, state) or function)
        return found

    def _into_main(self, more):
        self._names.update(more)
        return self._names

    def _known(self, made):
        """Have a function or class of `__main__` found under its name, also if no function refers to it by that."""
        if made.__module__ == "__main__" and made.__qualname__ == made.__name__ != "<lambda>":
            self._names.setdefault(made.__name__, made)
        return made


class _NamesOfMain:
    """Stands for the names of `__main__` that functions see; `more` are those that no function refers to."""

    def __init__(self, more):
        self._more = more

    def __reduce__(self):
        return _into_main, (self._more,)


def _known_or_made(make, *parts):
    """A class of a cell that is here already, or made anew: that would enter it a second time into its base's list of
    subclasses (`__init_subclass__`).
    """
    *_, tracker_id, _ = parts
    known = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker_id)
    return make(*parts) if known is None else known


def _into_main(more):
    """Never called: the unpickler knows into which names they go."""
    raise NotImplementedError


def _same(obj):
    return obj


def _bytes_of(typed_storage):
    import torch

    untyped = typed_storage._untyped_storage.cpu()
    return torch.empty(0, dtype=torch.uint8).set_(untyped).numpy()


def _of_shared(map_it, arguments, dtype):
    import torch

    return torch.storage.TypedStorage(wrap_storage=map_it(*arguments), dtype=dtype, _internal=True)


def _rebuild_storage(buffer, dtype):
    import torch

    view = memoryview(buffer)
    if view.nbytes == 0:
        untyped = torch.UntypedStorage(0)
    else:
        untyped = torch.frombuffer(view, dtype=torch.uint8).untyped_storage()
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def dump(obj, keeps_shared=False, name_of=None):
    """Write `obj` to an anonymous file and return its descriptor, which the caller closes.

    `keeps_shared`: memory that is shared stays so, for a receiver on this machine while `obj` lives here. For what the
    receiver will have in its `__main__`, `name_of(thing)` returns the name there, and for all else None.

    Raises whatever pickling raises (TypeError, PicklingError, AttributeError, …), with nothing left open.
    """
    stream, buffers = io.BytesIO(), []
    _Pickler(stream, buffers.append, keeps_shared, name_of).dump(obj)
    pickled = stream.getbuffer()
    raws = [buffer.raw() for buffer in buffers]
    fd = anonymous_file("course-payload")
    try:
        # Header: number of pieces, then the length of each; every piece begins at a multiple of _ALIGNMENT.
        lengths = [pickled.nbytes, *(raw.nbytes for raw in raws)]
        header = struct.pack(f"<{1 + len(lengths)}Q", len(lengths), *lengths)
        offset = 0
        for piece in [memoryview(header), pickled, *raws]:
            _write(fd, piece, offset)
            offset += -(-piece.nbytes // _ALIGNMENT) * _ALIGNMENT
        os.ftruncate(fd, max(offset, 1))
    except BaseException:
        os.close(fd)
        raise
    return fd


def require_sendable(obj):
    """Raise what `dump` would raise of `obj`, without a copy of the bytes of its tensors and arrays."""
    _Pickler(io.BytesIO(), lambda buffer: None, keeps_shared=True).dump(obj)


def shared_bytes(obj):
    """How many bytes of shared memory and mapped files are in `obj`: `dump` copies them unless it keeps them shared."""
    pickler = _Pickler(io.BytesIO(), lambda buffer: None, keeps_shared=True)
    pickler.dump(obj)
    return pickler.num_shared


def copy(fd, path):
    """Copy what `dump` wrote to the file `path`, which `load` reads as well."""
    shutil.copyfile(f"/dev/fd/{fd}", path)


def write(obj, path):
    """Write `obj` to the file `path`, for `load`. Raises whatever pickling raises."""
    fd = dump(obj)
    try:
        copy(fd, path)
    finally:
        os.close(fd)


def _write(fd, piece, offset):
    piece = piece.cast("B") if piece.nbytes else b""
    while len(piece):
        written = os.pwrite(fd, piece, offset)  # at most 2 GiB a call on Linux
        piece, offset = piece[written:], offset + written


def load(fd, names=None):
    """Return the object that `dump` wrote. Tensors and arrays are backed by a private mapping of the file.

    `names`: the dict that holds the names of `__main__` for what comes from there; None for one of its own. Raises
    whatever unpickling raises.
    """
    view = _mapped(fd)
    (count,) = struct.unpack_from("<Q", view, 0)
    lengths = struct.unpack_from(f"<{count}Q", view, 8)
    pieces, offset = [], -(-8 * (1 + count) // _ALIGNMENT) * _ALIGNMENT
    for length in lengths:
        pieces.append(view[offset : offset + length])
        offset += -(-length // _ALIGNMENT) * _ALIGNMENT
    return _Unpickler(io.BytesIO(pieces[0]), pieces[1:], names).load()


def _mapped(fd):
    """A private mapping of a file, as a memoryview."""
    try:
        import torch
    except ImportError:  # the interpreter of another framework
        return memoryview(mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE))
    # torch's, not mmap's, which keeps a descriptor open for as long as a result is kept.
    mapping = torch.UntypedStorage.from_file(f"/dev/fd/{fd}", False, os.fstat(fd).st_size)
    return memoryview(torch.empty(0, dtype=torch.uint8).set_(mapping).numpy())
