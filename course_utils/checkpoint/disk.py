"""A file that is whole or not there: written under another name, flushed, renamed; verified when it is read."""

import contextlib
import fcntl
import glob
import os
import pickle
import uuid
import zipfile

import torch

_FORMAT = "course_utils.checkpoint 1"


class CheckpointError(Exception):
    """A checkpoint could not be saved or loaded; the message says why. Nothing was changed or lost."""


def write(content, path):
    """Write the dict `content` to `path`; what was there before becomes `path` + ".previous"."""
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder: give the name of a file in it")
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path} is no ordinary file, and saving would replace it: give another name")
    if not path.parent.is_dir():
        raise CheckpointError(f"{path} could not be saved: there is no folder {path.parent}; make it first")
    try:
        _remove_leftovers(path)
        _write(content | {"format": _FORMAT}, path)
    except (OSError, RuntimeError) as error:
        # torch turns what the disk says into the context of an error of its own.
        reason = error if isinstance(error, OSError) else error.__context__
        if not isinstance(reason, OSError):
            raise
        before = path.exists() or _previous(path).exists()
        kept = "; the checkpoint saved before is untouched" if before else ""
        raise CheckpointError(f"{path} could not be saved: {reason.strerror}{kept}") from error


def _write(content, path):
    file, part = _new_part(path)
    try:
        with file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
            _rename(part, path)
    except BaseException:  # an interrupt too
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)  # the names are on the disk when the folder is
    try:
        with contextlib.suppress(OSError):  # some network file systems cannot flush a folder
            os.fsync(folder)
    finally:
        os.close(folder)


def _rename(part, path):
    """Make `part` the file at `path`, and the one that was there its .previous.

    `path` always has a file, and .previous keeps its own until the new one is in place: it may be the only good one.
    """
    if not path.exists():
        os.replace(part, path)
        return
    old = part.with_suffix(".old.part")
    try:
        os.link(path, old)
    except OSError:  # a file system without hard links: for a moment only .previous is there
        with contextlib.suppress(FileNotFoundError):  # another process saves to the same path
            os.replace(path, _previous(path))
        os.replace(part, path)
        return
    try:
        os.replace(part, path)
        with contextlib.suppress(FileNotFoundError):
            os.replace(old, _previous(path))
    finally:
        old.unlink(missing_ok=True)


def _previous(path):
    return path.with_name(path.name + ".previous")


def _new_part(path):
    """Create the file to write to, locked while it is open: the lock tells others that its process is alive."""
    while True:
        # Not by tempfile, whose files only their owner can read.
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        file = open(part, "xb")
        with contextlib.suppress(OSError):  # a file system without locks, where nobody removes leftovers either
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file, part
        file.close()  # before it was locked, another save took it for a leftover


def _remove_leftovers(path):
    """Remove what killed saves to `path` have left, and nothing that a living process is writing."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 32}*.part"):
        with contextlib.suppress(OSError), open(part, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its process lives
            part.unlink()


def read(path):
    """Return the dict that `write` wrote to `path`, or raise a CheckpointError that says whether .previous is good."""
    try:
        return _read(path)
    except CheckpointError as error:
        previous = _previous(path)
        try:
            _read(previous)
        except CheckpointError:
            raise error from error.__cause__
        raise CheckpointError(f"{error}; the checkpoint before it is good: load {previous}") from error.__cause__


def _read(path):
    try:
        file = open(path, "rb")  # once, since a save may give the name to a newer file meanwhile
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        start = file.read(4)
        if not start:
            raise CheckpointError(f"{path} is empty: it was not written to its end")
        if start != b"PK\x03\x04":
            raise CheckpointError(f"{path} is no checkpoint: it does not begin as a file of torch.save does")
        try:
            content = _verified(file)
        except pickle.UnpicklingError as error:
            raise CheckpointError(f"{path} is no checkpoint of this course: it holds Python objects, and loading those "
                                  "could run code from the file") from error
        except MemoryError:
            raise
        except Exception as error:  # zipfile and torch raise many kinds for a damaged file
            raise CheckpointError(f"{path} is truncated or damaged ({str(error).partition(chr(10))[0]})") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise CheckpointError(f"{path} is no checkpoint of this course, but something else that torch.save wrote: "
                              "torch.load(path, weights_only=True) reads it")
    return content


def _verified(file):
    """Return what torch.save wrote to the open `file`, after a look at its checksums.

    torch ignores them: a flipped bit in a weight would load as another weight.
    """
    archive = zipfile.ZipFile(file)
    if damaged := archive.testzip():
        raise zipfile.BadZipFile(f"the checksum of its part {damaged.partition('/')[2]} is wrong")
    file.seek(0)
    # On the CPU, wherever it was saved: load_state_dict copies to the device of the object.
    return torch.load(file, map_location="cpu", weights_only=True)
