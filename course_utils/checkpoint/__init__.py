"""Save a training run, and continue it bit for bit: model, optimizer, whatever else has a state, and random numbers.

At every moment of a save, a kill included, `path` or `path` + ".previous" is a whole checkpoint (`disk.py`). A checkpoint
is read with `weights_only=True`, which never runs code from the file, and compared with what it is to restore before
anything is changed (`fit.py`).
"""

import contextlib
import copy
import random
from pathlib import Path

import numpy as np
import torch

from . import disk, fit
from .disk import CheckpointError

__all__ = ["CheckpointError", "load", "save"]


def save(path, /, *unnamed, **state):
    """Save `state`, and the random states of Python, NumPy, torch and CUDA, to the file `path`, whole or not at all.

    Of what has a `state_dict()` (model, optimizer, scheduler, scaler, sampler) that is saved; all else must be plain
    values or tensors (epoch, batch, history). The checkpoint before stays beside it as `path` + ".previous".

    Raises CheckpointError where the folder or the disk does not let it, and for a value that could not be loaded back.
    """
    _require_names(unnamed)
    objects = {name: value for name, value in state.items() if fit.has_state(value)}
    states = {name: thing.state_dict() for name, thing in objects.items()}
    values = {name: value for name, value in state.items() if name not in objects}
    for name, value in (states | values).items():
        fit.require_loadable(value, name)
    kinds = {name: fit.kind(thing) for name, thing in objects.items()}
    disk.write({"states": states, "kinds": kinds, "values": values, "random": _random_states()}, Path(path))


def load(path, /, *unnamed, **objects):
    """Restore `objects` and the random states from the file `path`; return the plain values in it, tensors on the CPU.

    Give every object that was saved, under the same name; `name=None` leaves it out. Tensors go to the device where the
    object has its own, wherever they were saved from.

    Raises CheckpointError, with all objects as they were, for a file that is missing, damaged or no checkpoint, and for
    a checkpoint of something else: other names, shapes or dtypes in the model, other parameters in the optimizer.
    """
    _require_names(unnamed)
    path = Path(path)
    content = disk.read(path)
    states, values = content["states"], content["values"]
    wanted = {name: thing for name, thing in objects.items() if thing is not None}
    for name, thing in wanted.items():
        if not fit.has_state(thing):
            raise CheckpointError(f"load restores objects such as a model, and returns plain values: {name}={thing!r:.40} "
                                  "has no state to restore")
        if name not in states:
            where = "is there as a plain value, which load returns" if name in values else "is not in it"
            raise CheckpointError(f"{path} holds {', '.join(states) or 'no object'}; {name} {where}")
    if missing := [name for name in states if name not in objects]:
        raise CheckpointError(f"{path} also holds {', '.join(missing)}: give load {missing[0]}=…, or {missing[0]}=None "
                              "to leave it out")
    for name, thing in wanted.items():
        if difference := fit.difference(name, thing, content["kinds"][name], states[name]):
            raise CheckpointError(f"{path} was saved from something else: {difference}; nothing was changed")
    _restore({name: (thing, states[name]) for name, thing in wanted.items()}, content["random"], path)
    return values


def _require_names(unnamed):
    if unnamed:
        raise CheckpointError(f"a {type(unnamed[0]).__name__} was given without a name, by which it is saved and found again: "
                              "write model=model, optimizer=optimizer and so on")


def _restore(pairs, random_states, path):
    """Load each (object, state) of `pairs`, then the random states; if one refuses, put back what was changed."""
    # An optimizer takes new tensors in place of its old ones, so that those need no copy.
    before = {
        name: thing.state_dict() if isinstance(thing, torch.optim.Optimizer) else copy.deepcopy(thing.state_dict())
        for name, (thing, _) in pairs.items()
    }
    random_before = _random_states()
    changed = []
    try:
        for name, (thing, state) in pairs.items():
            changed.append(name)
            thing.load_state_dict(state)
        _set_random_states(random_states)
    except BaseException as error:
        for name in changed:
            with contextlib.suppress(Exception):  # what refuses its own state too has not taken another
                pairs[name][0].load_state_dict(before[name])
        _set_random_states(random_before)
        if not isinstance(error, Exception):
            raise
        raise CheckpointError(f"{path}: {changed[-1]} refused its state ({error}); nothing was changed") from error


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
        print(f"Random states of GPUs: {len(saved)} in the checkpoint, {num_gpus} GPUs here; what is drawn on a GPU "
              "where the other has none, such as dropout, goes on with other numbers.")
