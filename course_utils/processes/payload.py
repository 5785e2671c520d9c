"""Objects on their way between the notebook and its workers, in anonymous shared memory.

A function or a result is pickled by cloudpickle (which takes functions, lambdas and classes of a cell along by
value). Arrays and tensors are not copied into the pickle: their bytes lie behind it in the same file, and the
receiver maps them in place. So four workers that receive one data set share one copy of it, until one of them writes
to its own (the mapping is private), and a result of a gigabyte needs no pipe to be drained.
"""

import dataclasses
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

    def __init__(self, file, buffer_callback):
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self._storages = {}

    def reducer_override(self, obj):
        if isinstance(obj, types.ModuleType) and type(obj) is not types.ModuleType:  # cloudpickle knows only plain ones
            return importlib.import_module, (obj.__name__,)  # torch.backends.cudnn, for one
        if (carried := _of_functools(obj)) is not None:
            return carried
        torch = sys.modules.get("torch")  # where it is not imported, nothing is a tensor's
        if torch is not None and isinstance(obj, torch.storage.TypedStorage):
            # Views of one storage each bring a new TypedStorage: without this memo the bytes would travel once a view.
            key = (obj._untyped_storage._cdata, obj.dtype)
            first = self._storages.setdefault(key, obj)
            if first is not obj:
                return _same, (first,)
            return _rebuild_storage, (pickle.PickleBuffer(_bytes_of(obj)), obj.dtype)
        return super().reducer_override(obj)


class _Unpickler(pickle.Unpickler):
    """Leaves the classes alone that this process has already.

    cloudpickle sends a cell's class along with its instances, and what arrives would otherwise be written over the
    notebook's own class: its methods then see copies of the globals, and its attributes are the worker's.
    """

    def __init__(self, file, buffers):
        super().__init__(file, buffers=buffers)
        self._own = set(cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS)

    def find_class(self, module, name):
        found = super().find_class(module, name)
        if name != "_class_setstate" or not module.startswith("cloudpickle"):
            return found
        return lambda cls, state: cls if cls in self._own else found(cls, state)


def _of_functools(obj):
    """How to make anew what functools and dataclasses have made of a cell's own; None for all else.

    Their objects are pickled by name, which a worker's `__main__` does not have, or hold locks and weak references.
    """
    if isinstance(obj, functools._lru_cache_wrapper) and _is_of_a_cell(obj):
        return _cached, (obj.__wrapped__, obj.cache_parameters())
    if isinstance(obj, types.FunctionType) and obj.__code__ is _DISPATCHER and _is_of_a_cell(obj):
        others = [(kind, function) for kind, function in obj.registry.items() if kind is not object]
        return functools.singledispatch, (obj.registry[object],), others, None, None, _register
    if type(obj) is functools.cached_property:  # holds a lock before Python 3.12
        return functools.cached_property, (obj.func,), {"attrname": obj.attrname}
    if obj is dataclasses.MISSING:
        return getattr, (dataclasses, "MISSING")
    return None


_DISPATCHER = functools.singledispatch(len).__code__


def _is_of_a_cell(obj):
    module = sys.modules.get(obj.__module__)
    return obj.__module__ == "__main__" or _attribute(module, getattr(obj, "__qualname__", "")) is not obj


def _attribute(module, path):
    for name in path.split("."):
        module = getattr(module, name, None)
    return module


def _cached(function, parameters):
    return functools.lru_cache(**parameters)(function)


def _register(dispatcher, functions):
    for kind, function in functions:
        dispatcher.register(kind, function)


def _same(obj):
    return obj


def _bytes_of(typed_storage):
    import torch

    untyped = typed_storage._untyped_storage.cpu()
    return torch.empty(0, dtype=torch.uint8).set_(untyped).numpy()


def _rebuild_storage(buffer, dtype):
    import torch

    view = memoryview(buffer)
    if view.nbytes == 0:
        untyped = torch.UntypedStorage(0)
    else:
        untyped = torch.frombuffer(view, dtype=torch.uint8).untyped_storage()
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def dump(obj):
    """Write `obj` to an anonymous file and return its descriptor, which the caller closes.

    Raises whatever pickling raises (TypeError, PicklingError, AttributeError, …), with nothing left open.
    """
    stream, buffers = io.BytesIO(), []
    _Pickler(stream, buffers.append).dump(obj)
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


def load(fd):
    """Return the object that `dump` wrote. Tensors and arrays are backed by a private mapping of the file.

    Raises whatever unpickling raises.
    """
    view = _mapped(fd)
    (count,) = struct.unpack_from("<Q", view, 0)
    lengths = struct.unpack_from(f"<{count}Q", view, 8)
    pieces, offset = [], -(-8 * (1 + count) // _ALIGNMENT) * _ALIGNMENT
    for length in lengths:
        pieces.append(view[offset : offset + length])
        offset += -(-length // _ALIGNMENT) * _ALIGNMENT
    return _Unpickler(io.BytesIO(pieces[0]), pieces[1:]).load()


def _mapped(fd):
    """A private mapping of a file, as a memoryview."""
    try:
        import torch
    except ImportError:  # the interpreter of another framework
        return memoryview(mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE))
    # torch's, not mmap's, which keeps a descriptor open for as long as a result is kept.
    mapping = torch.UntypedStorage.from_file(f"/dev/fd/{fd}", False, os.fstat(fd).st_size)
    return memoryview(torch.empty(0, dtype=torch.uint8).set_(mapping).numpy())
