"""Whether a state can be loaded back at all, and whether it fits the object that it is to restore."""

from collections import Counter, OrderedDict

import torch

from .disk import CheckpointError

# What torch.load(weights_only=True) gives back. A subclass, such as numpy.float64 is of float, it refuses.
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


def has_state(value):
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict") and not isinstance(value, type)


def require_loadable(value, where):
    """Raise CheckpointError, naming the place in `value`, if a file with it could be written but not be read."""
    kind = type(value)
    if kind in (torch.Tensor, torch.nn.Parameter):
        if value.is_meta:
            raise CheckpointError(f"{where} is on the meta device and has no values; nothing was saved")
    elif kind in (dict, OrderedDict, Counter):
        for key, inner in value.items():
            require_loadable(key, f"{where}'s key {key!r}")
            require_loadable(inner, f"{where}[{key!r}]")
    elif kind in (list, tuple, set):
        for i, inner in enumerate(value):
            require_loadable(inner, f"{where}[{i}]")
    elif kind not in _PLAIN:
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        raise CheckpointError(
            f"{where} is a {name}, which could not be loaded back without running code "
            "from the file: give plain values (numbers, text, lists, dicts) or tensors; nothing was saved"
        )


def kind(thing):
    """What must be the same for a state to fit, where the state alone does not show it."""
    if isinstance(thing, torch.nn.Module):
        return {}
    found = {"class": type(thing).__name__}
    if isinstance(thing, torch.optim.Optimizer):
        found["groups"] = [[(tuple(p.shape), p.dtype) for p in group["params"]] for group in thing.param_groups]
    return found


def difference(name, thing, saved_kind, saved_state):
    """What keeps `saved_state` from fitting `thing`, in words; None if it fits."""
    own = kind(thing)
    if saved_kind.get("class") != own.get("class"):
        return f"{name} was {saved_kind.get('class', 'a model')} and is {type(thing).__name__} here"
    if not own:
        return _other_tensors(name, saved_state, thing.state_dict())
    saved_groups, own_groups = saved_kind.get("groups", []), own.get("groups", [])
    if len(saved_groups) != len(own_groups):
        return f"{name} had {len(saved_groups)} parameter groups and has {len(own_groups)} here"
    for i, (saved, here) in enumerate(zip(saved_groups, own_groups)):
        if len(saved) != len(here):
            return f"{name}'s parameter group {i} had {len(saved)} parameters and has {len(here)} here"
        for j, (then, now) in enumerate(zip(saved, here)):
            if then != now:
                return f"{name}'s parameter {j} (in group {i}) was {_words(*then)} and is {_words(*now)} here"
    return None


def _other_tensors(name, saved, own):
    if only_here := [key for key in own if key not in saved]:
        return f"{name} has {_some(only_here)} here, and the checkpoint does not"
    if only_saved := [key for key in saved if key not in own]:
        return f"{name} had {_some(only_saved)}, and has not here"
    for key in own:
        if isinstance(own[key], torch.Tensor) and isinstance(saved[key], torch.Tensor):
            then, now = [(tuple(tensor.shape), tensor.dtype) for tensor in (saved[key], own[key])]
            if then != now:
                return f"{name}'s {key} was {_words(*then)} and is {_words(*now)} here"
    return None


def _some(keys):
    return keys[0] if len(keys) == 1 else f"{keys[0]} and {len(keys) - 1} more"


def _words(shape, dtype):
    return f"{shape} of {str(dtype).removeprefix('torch.')}"
