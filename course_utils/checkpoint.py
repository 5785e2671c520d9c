"""Save a training run, and continue it bit for bit: model, optimizer, whatever else has a state, and random numbers.

A checkpoint is written under another name, flushed, and renamed: at every moment of a save, a kill included, `path` or
`path` + ".previous" is a whole one. It is read with `weights_only=True`, which never runs code from the file.
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

_FORMAT = "course_utils.checkpoint 2"
_PARTS = ("states", "classes", "values", "random")  # each a dict


class CheckpointError(Exception):
    """A checkpoint could not be saved or loaded; the message says why. Nothing was changed or lost."""


def save(path, /, **state):
    """Save `state`, and the random states of Python, NumPy, torch and CUDA, to the file `path`, whole or not at all.

    Of what has a `state_dict()` (model, optimizer, scheduler, scaler, sampler) that is saved; all else must be plain
    values or tensors (epoch, batch, history). The checkpoint before stays beside it as `path` + ".previous".

    Raises CheckpointError where the folder or the disk does not let it, and for a value that could not be loaded back.
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
        # torch turns what the disk says into the context of an error of its own.
        reason = error if isinstance(error, OSError) else error.__context__
        if not isinstance(reason, OSError):
            raise
        kept = "; the checkpoint saved before is untouched" if path.exists() or _previous(path).exists() else ""
        raise CheckpointError(f"{path} could not be saved: {reason.strerror}{kept}") from error


def load(path, /, **objects):
    """Restore `objects` and the random states from the file `path`; return the plain values in it, tensors on the CPU.

    Give every object that was saved, under the same name; `name=None` leaves it out. Tensors go to the device where the
    object has its own, wherever they were saved from.

    Raises CheckpointError, with all objects as they were, for a file that is missing, damaged or no checkpoint, and for
    a checkpoint of something else.
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
    """What must be the same: an optimizer or a scheduler takes another's state without a word. A model does not."""
    return None if isinstance(thing, torch.nn.Module) else type(thing).__name__


def _restore(pairs, random_states, path):
    """Load each (object, state) of `pairs`, then the random states; if one refuses, put back what was changed."""
    # An optimizer takes new tensors in place of its old ones, so that those need no copy.
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
            with contextlib.suppress(Exception):  # what refuses its own state too has not taken another
                pairs[name][0].load_state_dict(before[name])
        _set_random_states(random_before)
        if not isinstance(error, Exception):
            raise
        reason = textwrap.shorten(str(error), 300)
        raise CheckpointError(f"{path}: {refused} ({reason}); nothing was changed") from error


def _require_dtypes(thing, state):
    """Raise ValueError if a model's tensors are of other dtypes than in `state`: torch would round without a word."""
    for key, tensor in thing.state_dict().items() if isinstance(thing, torch.nn.Module) else ():
        if key in state and isinstance(tensor, torch.Tensor) and tensor.dtype != state[key].dtype:
            raise ValueError(f"{key} was {state[key].dtype} and is {tensor.dtype} here")


def _random_states():
    _, key, position, has_gauss, cached_gauss = np.random.get_state()
    return {
        "python": random.getstate(),
        # As a tensor, because weights_only refuses NumPy's arrays.
        "numpy": (torch.from_numpy(key.astype(np.int64)), position, has_gauss, cached_gauss),
        "torch": torch.get_rng_state(),
        # Where CUDA is not in use, asking would initialise it, and nothing was drawn there.
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def _set_random_states(states):
    random.setstate(states["python"])
    key, *rest = states["numpy"]
    np.random.set_state(("MT19937", key.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    saved = states["cuda"]
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for i in range(min(len(saved), num_gpus)):
        torch.cuda.set_rng_state(saved[i], i)
    if len(saved) > num_gpus or (torch.cuda.is_initialized() and not saved):
        print(
            f"Random states of GPUs: {len(saved)} in the checkpoint, {num_gpus} GPUs here; what is drawn on a GPU "
            "where the other has none, such as dropout, goes on with other numbers."
        )


def _followed(path):
    """The file that `path` is a link to, or `path`: a file renamed to a link would replace the link."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)


def _previous(path):
    return path.with_name(path.name + ".previous")


def _write(content, path):
    """Write `content` to `path`, if it can be loaded back; what was there before becomes `path` + ".previous"."""
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
    except BaseException:  # an interrupt too
        part.unlink(missing_ok=True)
        raise


def _save_to(file, content):
    """Write `content` to the open `file`; return what in it `weights_only` will refuse, in words, or nothing."""
    try:
        torch.save(content, file)
        file.flush()
        return ", ".join(torch.serialization.get_unsafe_globals_in_checkpoint(file.name))
    except (pickle.PickleError, AttributeError, TypeError) as error:  # of a function, a generator, an open file
        return str(error)


def _new_part(path):
    """Create the file to write to, locked while it is open, in place of those that killed saves have left unlocked."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with contextlib.suppress(OSError), open(part, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its process lives
            part.unlink()
    while True:
        # Not by tempfile, whose files only their owner can read.
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        file = open(part, "xb")
        with contextlib.suppress(OSError):  # a file system without locks, where nobody removes leftovers either
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file, part
        file.close()  # before it was locked, another save took it for a leftover


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
        with open(path, "rb") as file:  # once, since a save may give the name to a newer file meanwhile
            # torch ignores the checksums: a flipped bit in a weight would load as another weight.
            if damaged := zipfile.ZipFile(file).testzip():
                raise zipfile.BadZipFile(f"the checksum of its part {damaged.partition('/')[2]} is wrong")
            file.seek(0)
            # On the CPU, wherever it was saved: load_state_dict copies to the device of the object.
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
    except Exception as error:  # zipfile and torch raise many kinds for a damaged file
        raise CheckpointError(f"{path} is truncated or damaged ({str(error).partition(chr(10))[0]})") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise CheckpointError(
            f"{path} is no checkpoint of this course, but something else that torch.save wrote: "
            "torch.load(path, weights_only=True) reads it"
        )
    if missing := [name for name in _PARTS if not isinstance(content.get(name), dict)]:
        raise CheckpointError(f"{path} is no whole checkpoint: it lacks {', '.join(missing)}; load another one")
    return content
