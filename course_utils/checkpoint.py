"""Save a training run, and continue it bit for bit: model, optimizer, other objects with a state, and random states.

A checkpoint is written under another name, flushed, and renamed; then the folder is flushed. Whenever a save is
interrupted, even by a kill, `path` or `path` + ".previous" is complete. It is read with `weights_only=True`, which
never runs code from the file.
"""

import contextlib
import copy
import fcntl
import glob
import os
import pickle
import random
import textwrap
import uuid
import zipfile
from pathlib import Path

import numpy as np
import torch

from . import hardware

_FORMAT = "course_utils.checkpoint 2"
_PARTS = ("states", "classes", "values", "random")  # each a dict


class CheckpointError(Exception):
    """Raised if a checkpoint cannot be saved or loaded; the message says why. Nothing was changed or lost."""


def save(path, /, **state):
    """Save `state` and the random states of Python, NumPy, torch and CUDA to the file `path`, atomically.

    Objects with a `state_dict()` (model, optimizer, scheduler, scaler, sampler) are saved by it; all else must be plain
    values or tensors (epoch, batch, history). The previous checkpoint is kept as `path` + ".previous".

    Raises CheckpointError if the folder or disk does not allow it, and for a value that could not be loaded back.
    """
    path = _followed(path)
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "no ordinary file"
        raise CheckpointError(f"{path} is {what}: give the name of a file")
    if not path.parent.is_dir():
        raise CheckpointError(f"{path} could not be saved: there is no folder {path.parent}; make it first")
    objects = {name: value for name, value in state.items() if _has_state(value)}
    content = {
        "format": _FORMAT,
        "classes": {name: _class(thing) for name, thing in objects.items()},
        "states": {name: thing.state_dict() for name, thing in objects.items()},
        "values": {name: value for name, value in state.items() if name not in objects},
        "random": _random_states(),
    }
    try:
        _write(content, path)
    except (OSError, RuntimeError) as error:
        # torch raises an error of its own, with the OSError as its context.
        reason = error if isinstance(error, OSError) else error.__context__
        if not isinstance(reason, OSError):
            raise
        kept = "; the checkpoint saved before is untouched" if path.exists() or _previous(path).exists() else ""
        raise CheckpointError(f"{path} could not be saved: {reason.strerror}{kept}") from error


def load(path, /, **objects):
    """Restore `objects` and the random states from the file `path`; return the plain values in it, tensors on the CPU.

    Give every object that was saved, under the same name; `name=None` leaves it out. An object's tensors stay on its
    device, whatever device they were saved from.

    Raises CheckpointError, and leaves all objects unchanged, if the file is missing, damaged or no checkpoint, or is a
    checkpoint of other objects.
    """
    path = _followed(path)
    content = _read(path)
    states, classes = content["states"], content["classes"]
    wanted = {name: thing for name, thing in objects.items() if thing is not None}
    for name, thing in wanted.items():
        if name not in states:
            held = ", ".join(states) or "no object"
            raise CheckpointError(f"{path} holds {held}; there is no state for {name} in it")
        if _class(thing) != classes.get(name):
            here = f"{name} was {classes.get(name) or 'a model'} and is {type(thing).__name__} here"
            raise CheckpointError(f"{path} was saved from something else: {here}; nothing was changed")
    if missing := [name for name in states if name not in objects]:
        raise CheckpointError(
            f"{path} also holds {', '.join(missing)}: give load {missing[0]}=…, or {missing[0]}=None to leave it out"
        )
    _restore({name: (thing, states[name]) for name, thing in wanted.items()}, content["random"], path)
    return content["values"]


def _has_state(value):
    return hasattr(value, "load_state_dict") and not isinstance(value, type)


def _class(thing):
    """Return the class name that must match: optimizers and schedulers silently load the state of another class.

    Returns None for a model, which raises an error itself.
    """
    return None if isinstance(thing, torch.nn.Module) else type(thing).__name__


def _restore(pairs, random_states, path):
    """Load each (object, state) of `pairs`, then the random states; if one fails, undo all changes."""
    # An optimizer replaces its tensors when it loads a state, so the old ones need no copy.
    before = {
        name: thing.state_dict() if isinstance(thing, torch.optim.Optimizer) else copy.deepcopy(thing.state_dict())
        for name, (thing, _) in pairs.items()
    }
    random_before = _random_states()
    changed, refused = [], None
    try:
        for name, (thing, state) in pairs.items():
            changed.append(name)
            refused = f"{name} refused its state"
            _require_dtypes(thing, state)
            thing.load_state_dict(state)
        refused = "the random states in it cannot be restored"
        _set_random_states(random_states)
    except BaseException as error:
        for name in changed:
            with contextlib.suppress(Exception):  # an object that fails here was not changed
                pairs[name][0].load_state_dict(before[name])
        _set_random_states(random_before)
        if not isinstance(error, Exception):
            raise
        reason = textwrap.shorten(str(error), 300)
        raise CheckpointError(f"{path}: {refused} ({reason}); nothing was changed") from error


def _require_dtypes(thing, state):
    """Raise ValueError if a model's tensors have other dtypes than in `state`: torch would silently round."""
    for key, tensor in thing.state_dict().items() if isinstance(thing, torch.nn.Module) else ():
        if key in state and isinstance(tensor, torch.Tensor) and tensor.dtype != state[key].dtype:
            raise ValueError(f"{key} was {state[key].dtype} and is {tensor.dtype} here")


def _random_states():
    _, key, position, has_gauss, cached_gauss = np.random.get_state()
    return {
        "python": random.getstate(),
        # As a tensor, since weights_only refuses NumPy's arrays.
        "numpy": (torch.from_numpy(key.astype(np.int64)), position, has_gauss, cached_gauss),
        "torch": torch.get_rng_state(),
        # If CUDA is not initialised, nothing was drawn there, and asking would initialise it.
        "cuda": [torch.cuda.get_rng_state(i) for i in range(_num_gpus())] if torch.cuda.is_initialized() else [],
    }


def _set_random_states(states):
    random.setstate(states["python"])
    key, *rest = states["numpy"]
    np.random.set_state(("MT19937", key.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    saved = states["cuda"]
    num_gpus = _num_gpus()
    for i in range(min(len(saved), num_gpus)):
        torch.cuda.set_rng_state(saved[i], i)
    if len(saved) > num_gpus or (torch.cuda.is_initialized() and not saved):
        print(
            f"Random states of GPUs: {len(saved)} in the checkpoint, {num_gpus} GPUs here; what is drawn on a GPU "
            "where the other has none, such as dropout, goes on with other numbers."
        )


def _num_gpus():
    # Not get_rng_state_all(), nor device_count(): both may count GPUs that CUDA does not give.
    return hardware.num_of_cuda() if torch.cuda.is_available() else 0


def _followed(path):
    """Resolve `path` if it is a link, since renaming a file to it would replace the link."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)


def _previous(path):
    return path.with_name(path.name + ".previous")


def _write(content, path):
    """Write `content` to `path`, if it can be loaded back; the previous file becomes `path` + ".previous"."""
    file, part = _new_part(path)
    try:
        with file:
            if refused := _save_to(file, content):
                raise CheckpointError(
                    f"{path} could not be saved: it could not be loaded back because of {refused}; give plain values "
                    "(.item() of NumPy's numbers, text, lists, dicts) or tensors; nothing was saved"
                )
            os.fsync(file.fileno())
            _rename(part, path)
            _sync_folder(path.parent)
    except BaseException:  # an interrupt too
        part.unlink(missing_ok=True)
        raise


def _sync_folder(folder):
    """Put the new names in `folder` on the disk: otherwise a power failure may bring the old file back."""
    with contextlib.suppress(OSError):  # not allowed, or not possible: the file is whole all the same
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _save_to(file, content):
    """Write `content` to the open `file`; return a text with what `weights_only` will refuse, or ""."""
    try:
        torch.save(content, file)
        file.flush()
        return ", ".join(torch.serialization.get_unsafe_globals_in_checkpoint(file.name))
    except (pickle.PickleError, AttributeError, TypeError) as error:  # such as for an open file
        return str(error)


def _new_part(path):
    """Create and lock the file to write to, and remove the unlocked files that killed saves left behind."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with contextlib.suppress(OSError), open(part, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its process lives
            part.unlink()
    while True:
        # tempfile is not used: only the owner could read its files.
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        file = open(part, "xb")
        with contextlib.suppress(OSError):  # without locks, no other save removes it either
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file, part
        file.close()  # another save has removed it before it was locked


def _rename(part, path):
    """Rename `part` to `path`, and the file that was there to .previous.

    There is always a file at `path`. The old .previous is kept until `part` is in place: it may be the only good one.
    """
    if not path.exists():
        os.replace(part, path)
        return
    old = part.with_suffix(".old.part")
    try:
        os.link(path, old)
    except OSError:  # no hard links: for a moment only .previous exists
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


def _read(path):
    """Return what `save` wrote to `path`, or raise a CheckpointError that says whether .previous is good."""
    try:
        return _read_one(path)
    except CheckpointError as error:
        with contextlib.suppress(CheckpointError):
            _read_one(_previous(path))
            error.args = (f"{error}; the checkpoint before it is good: load {_previous(path)}",)
        raise


def _read_one(path):
    try:
        with open(path, "rb") as file:  # opened once, since a save may replace the file meanwhile
            # torch ignores the checksums, and would load a weight with a flipped bit.
            if damaged := zipfile.ZipFile(file).testzip():
                raise zipfile.BadZipFile(f"the checksum of its part {damaged.partition('/')[2]} is wrong")
            file.seek(0)
            # On the CPU: load_state_dict copies to the device of the object.
            content = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}") from None
    except (IsADirectoryError, PermissionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} is no checkpoint of this course: it holds Python objects, and loading those "
            "could run code from the file"
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # zipfile and torch raise many kinds of errors
        raise CheckpointError(f"{path} is truncated or damaged ({str(error).partition(chr(10))[0]})") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise CheckpointError(
            f"{path} is no checkpoint of this course, but something else that torch.save wrote: "
            "torch.load(path, weights_only=True) reads it"
        )
    if missing := [name for name in _PARTS if not isinstance(content.get(name), dict)]:
        raise CheckpointError(f"{path} is no whole checkpoint: it lacks {', '.join(missing)}; load another one")
    return content
