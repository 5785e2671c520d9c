"""Payloads: objects sent between the notebook and its workers in anonymous shared memory.

A function or a result is pickled by cloudpickle, which includes functions, lambdas and classes of cells by value.
Arrays and tensors are not copied into the pickle: their bytes follow it in the same file, and the receiver maps them.
So four workers that receive one data set share one copy until they write to it (the mapping is private), and a result
of a gigabyte does not go through a pipe.

On request, what comes from the notebook's `__main__` goes into the receiver's: there, code that pickles by name (a
queue, a DataLoader's process, torch.save) finds it under the notebook's names.
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

_ALIGNMENT = 64  # bytes, for vectorised kernels with aligned loads


def anonymous_file(name):
    """Return the descriptor of a file without a name, which is freed when its last descriptor is closed."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:  # macOS
        return os.dup(file.fileno())


class Pickler(cloudpickle.Pickler):
    """A cloudpickle that keeps the file names of code objects, so that tracebacks show the student's lines.

    cloudpickle 3.1.3 drops them.
    """

    def reducer_override(self, obj):
        if isinstance(obj, types.CodeType):
            make, parts = cloudpickle.Pickler.dispatch_table[types.CodeType](obj)
            return _of_file, (obj.co_filename, make, parts)
        return super().reducer_override(obj)


def _of_file(name, make, parts):
    return make(*parts).replace(co_filename=name)


class _Pickler(Pickler):
    """A cloudpickle that sends tensors' bytes out of band and copies CUDA tensors to the CPU."""

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
        if isinstance(obj, types.ModuleType) and type(obj) is not types.ModuleType:
            # cloudpickle does not handle subclasses of ModuleType, such as torch.backends.cudnn.
            return importlib.import_module, (obj.__name__,)
        bound.require_unbound(obj)
        if (carried := carry.anew(obj)) is not None:
            return carried
        if self._keeps_shared and (mapped := shared.array(obj)) is not None:
            self.num_shared += obj.nbytes
            return mapped
        torch = sys.modules.get("torch")  # without it, `obj` is no storage
        if torch is not None and isinstance(obj, torch.storage.TypedStorage):
            # Each view of a storage has a TypedStorage of its own: without this memo the bytes are sent once per view.
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
    """An unpickler that keeps the notebook's own classes.

    cloudpickle sends a cell's class with its instances, and would overwrite the notebook's class: its methods would
    then see copies of the globals, and its attributes would be the worker's. In a rank, which passes `names`, classes
    are overwritten, since their methods would otherwise see the globals of an earlier request.
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
        """Add a function or class of `__main__` to the names, even if no function refers to it by name."""
        if made.__module__ == "__main__" and made.__qualname__ == made.__name__ != "<lambda>":
            self._names.setdefault(made.__name__, made)
        return made


class _NamesOfMain:
    """Pickles as the receiver's `__main__` names, the functions' globals; `more` are names to add to them."""

    def __init__(self, more):
        self._more = more

    def __reduce__(self):
        return _into_main, (self._more,)


def _known_or_made(make, *parts):
    """Return the class of a cell if this process has it, else make it.

    Making it again would call its base's `__init_subclass__` a second time.
    """
    *_, tracker_id, _ = parts
    known = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker_id)
    return make(*parts) if known is None else known


def _into_main(more):
    """Stand for _Unpickler._into_main in the pickle; never called."""
    raise NotImplementedError


def _same(obj):
    return obj


def _bytes_of(typed_storage):
    import torch

    untyped = typed_storage._untyped_storage.cpu()
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(untyped).numpy()


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

    `keeps_shared`: shared memory stays shared, for a receiver on this machine and only while `obj` exists here.
    `name_of(thing)` returns the name of what the receiver will have in its `__main__`, and None for all else.

    Raises what pickling raises (TypeError, PicklingError, AttributeError, …), and leaves no descriptor open.
    """
    stream, buffers = io.BytesIO(), []
    _Pickler(stream, buffers.append, keeps_shared, name_of).dump(obj)
    pickled = stream.getbuffer()
    raws = [buffer.raw() for buffer in buffers]
    fd = anonymous_file("course-payload")
    try:
        # The header is the number of pieces and the length of each; each piece begins at a multiple of _ALIGNMENT.
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
    """Raise what `dump(obj)` would raise, without copying the bytes of tensors and arrays."""
    _Pickler(io.BytesIO(), lambda buffer: None, keeps_shared=True).dump(obj)


def shared_bytes(obj):
    """Return the bytes of shared memory and mapped files in `obj`, which `dump` copies unless it keeps them shared."""
    pickler = _Pickler(io.BytesIO(), lambda buffer: None, keeps_shared=True)
    pickler.dump(obj)
    return pickler.num_shared


def copy(fd, path):
    """Copy a payload to the file `path`, which `load` can read."""
    shutil.copyfile(f"/dev/fd/{fd}", path)


def write(obj, path):
    """Write `obj` to the file `path`, for `load`. Raises what pickling raises."""
    fd = dump(obj)
    try:
        copy(fd, path)
    finally:
        os.close(fd)


def _write(fd, piece, offset):
    piece = piece.cast("B") if piece.nbytes else b""
    while len(piece):
        written = os.pwrite(fd, piece, offset)  # at most 2 GiB per call on Linux
        piece, offset = piece[written:], offset + written


def load(fd, names=None):
    """Return the object that `dump` wrote; its tensors and arrays use a private mapping of the file.

    `names`: the dict for names from the sender's `__main__`; None means a new one. Raises what unpickling raises.
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
    """Map a file privately, and return a memoryview."""
    try:
        import torch
    except ImportError:  # the interpreter of another framework
        return memoryview(mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE))
    # torch's mapping: that of mmap would keep a descriptor open as long as the result exists.
    mapping = torch.UntypedStorage.from_file(f"/dev/fd/{fd}", False, os.fstat(fd).st_size)
    return memoryview(torch.empty(0, dtype=torch.uint8, device="cpu").set_(mapping).numpy())
