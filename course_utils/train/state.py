"""The training program's checkpoints, which any number of ranks can load: one file, or sharded folders (`sharded`).

The file has unsharded tensors, which rank 0 gathers and writes while all ranks wait.
"""

import os
import textwrap
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)

from .. import checkpoint
from ..checkpoint import CheckpointError
from . import sharded
from .places import Refused, agreement, require_same

# The values that `resume` needs in a checkpoint, and their types; a file also holds the tensors.
_VALUES = {"scaler": dict, "about": dict, "world_size": int, "epoch": int, "step": int, "loss_sum": float,
           "figures": dict | None}  # fmt: skip
_TENSORS = {"model": dict, "optimizer": dict}


def _file(run):
    return Path(run.options.checkpoint) / "last.pt"


def _about(run):
    """Return the settings that must be equal in a checkpoint and in the run that resumes it."""
    names = ("model", "strategy", "batch_size", "precision", "seed")
    return {name: getattr(run.options, name) for name in names} | {"data": run.data}


def _how(run):
    """Return the settings that may change when a run is resumed: the new ones are used, and differences printed."""
    names = ("lr", "base_batch", "warmup", "fixed_lr", "momentum", "replicas", "micro_batches")
    return {name: getattr(run.options, name) for name in names}


def _are_stages(run):
    return run.options.strategy == "pipeline"


def _values(run):
    """Return what a checkpoint holds besides tensors. Rank 0's random state serves all, which draw the same numbers."""
    return {
        "scaler": run.scaler.state_dict(),
        "about": _about(run),
        "how": _how(run),
        "world_size": run.place.world_size,
        "epoch": run.epoch,
        "step": run.step,
        "loss_sum": run.loss_sum,
        "figures": run.figures,
    }


def save(run):
    """Save the state of `run` to its --checkpoint folder, atomically; all ranks must call it.

    With --sharded, the state is only copied when this returns; `finish` waits until it is written. Raises Refused, on
    all ranks, if it cannot be written, or if the one before could not.
    """
    if run.writer:
        step = run.epoch * run.num_steps + run.step
        with agreement():
            run.writer.wait()
            if run.place.rank == 0:
                run.writer.begin(step, _values(run))
        run.writer.write(step, _shards(run))
        return
    model, optimizer = _whole_state(run)
    with agreement():  # no rank goes on before the file is complete
        if run.place.rank == 0:
            checkpoint.save(_file(run), model=model, optimizer=optimizer, **_values(run))


def finish(run):
    """Wait until all that was saved is written. Raises Refused, on all ranks, if it could not be."""
    if run.writer:
        with agreement():
            run.writer.wait()


def _shards(run):
    """Return this rank's parts of the tensors of model and optimizer, by the parameters' names."""
    model, optimizer = get_state_dict(run.core, run.optimizer)
    state = {
        name: {key: value for key, value in its.items() if isinstance(value, torch.Tensor)}
        for name, its in optimizer["state"].items()
    }
    return {"model": model, "optimizer": state}


def _whole_state(run):
    """Return the states of model and optimizer, by the parameters' names; on rank 0 unsharded, on the CPU."""
    how = StateDictOptions(full_state_dict=not _are_stages(run), cpu_offload=True)
    model, optimizer = get_state_dict(run.core, run.optimizer, options=how)
    if _are_stages(run):  # each rank contributes its layers
        parts = [None] * run.place.world_size if run.place.rank == 0 else None
        dist.gather_object((model, optimizer), parts)
        for more, its_optimizer in (parts or [])[1:]:
            model |= more
            optimizer["state"] |= its_optimizer["state"]
            optimizer["param_groups"][0]["params"] += its_optimizer["param_groups"][0]["params"]
    return model, optimizer


def resume(run):
    """Load the checkpoint of `run`, or begin at the start if the options allow that; all ranks must call it.

    Raises Refused, on all ranks, for a checkpoint that is missing, damaged, of another run, or not expected.
    """
    # A worker that torchrun has restarted resumes without being asked.
    is_lenient = run.options.resume == "auto" or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0
    file = _file(run)
    with agreement():
        file.parent.mkdir(parents=True, exist_ok=True)
        there = _there(run, file)
        if not is_lenient and bool(there) != bool(run.options.resume):
            raise Refused(
                f"{file.parent} holds a checkpoint: --resume goes on from it; or name another folder"
                if there
                else f"--resume: there is no checkpoint in {file.parent}; `--resume auto` would begin anew"
            )
    if run.writer:
        with agreement():
            require_same("the list of checkpoints", [path.name for path in there])
        values = _restore_newest(there, run, is_lenient) if there else None
    else:
        values = _restore_file(there, run, is_lenient)
    if values:
        _say_what_differs(values, run)


def _there(run, file):
    """Return the paths of the run's checkpoints, the newest first. Raises Refused if they are of the other kind."""
    files = [path for path in (file, file.with_name(file.name + ".previous")) if path.exists()]
    folders = sharded.complete(file.parent)
    if files and run.writer:
        raise Refused(f"{file} was saved without --sharded: leave it out, or name another --checkpoint folder")
    if folders and not run.writer:
        raise Refused(f"{folders[0]} was saved with --sharded: give it, or name another --checkpoint folder")
    return files or folders


def _restore_newest(paths, run, is_lenient):
    """Restore the newest sharded checkpoint of `paths` that can be loaded; return its values."""
    fault = None
    for path in paths:
        try:
            with agreement():
                values = checkpoint.load(path / sharded.VALUES)
        except Refused as refusal:
            fault = fault or refusal
            continue
        with agreement():  # what is of another run is refused, and not passed over
            _require_parts(values, _VALUES, path)
            _require_alike(values, run, path, is_lenient)
        try:
            with agreement():
                _restore_shards(path, run)
        except Refused as refusal:
            fault = fault or refusal
            continue
        _restore_progress(values, run)
        if fault and run.place.rank == 0:
            print(f"{fault}; {path.name} is taken", flush=True)
        return values
    raise fault


def _restore_shards(path, run):
    tensors = _shards(run)  # of the right shapes, to be overwritten
    if not any(name.startswith("optimizer.") for name in sharded.names(path)) or not run.options.momentum:
        tensors["optimizer"] = {}  # without momentum, SGD has no state
    sharded.load(path, tensors)
    _, now = get_state_dict(run.core, run.optimizer)
    if tensors["optimizer"]:
        optimizer = {"state": tensors["optimizer"], "param_groups": now["param_groups"]}
        set_state_dict(run.core, run.optimizer, model_state_dict=tensors["model"], optim_state_dict=optimizer)
    else:
        set_model_state_dict(run.core, tensors["model"])


def _restore_file(paths, run, is_lenient):
    """Restore the first checkpoint file of `paths` that can be read; return its values, or None if there is none."""
    values, file = None, _file(run)
    with agreement():
        if paths:
            values = _read(paths, run.place.rank == 0)
            _require_parts(values, _TENSORS | _VALUES, file)
            _require_alike(values, run, file, is_lenient)
    with agreement():  # if only some nodes see the folder, ranks would begin at different steps
        require_same("the checkpoint's (epoch, step)", values and (values["epoch"], values["step"]))
    if values:
        with agreement():
            try:
                _restore(values, run)
            except Exception as error:  # torch raises many kinds of errors
                reason = textwrap.shorten(str(error), 300)
                raise Refused(
                    f"{file} does not fit this run ({type(error).__name__}: {reason}): name another --checkpoint folder"
                ) from error
    return values


def _read(paths, tells):
    """Return the values in the first of `paths` that can be loaded; if `tells`, print why an earlier one cannot."""
    fault = None
    for path in paths:
        try:
            values = checkpoint.load(path)
        except CheckpointError as error:
            fault = fault or error
            continue
        if fault and tells:
            print(f"{fault}; it is taken", flush=True)
        return values
    raise fault


def _require_parts(values, parts, file):
    if missing := [name for name, kind in parts.items() if not isinstance(values.get(name, ...), kind)]:
        raise Refused(
            f"{file} was not saved by this program, for it lacks {', '.join(missing)}: name another --checkpoint folder"
        )


def _require_alike(values, run, file, is_lenient):
    before, here = values["about"], _about(run)
    for name, value in here.items():
        if before.get(name) != value:
            raise Refused(
                f"{file} was saved by a run with {name.replace('_', ' ')} {before.get(name)}, and here it is "
                f"{value}: give the same, or name another --checkpoint folder"
            )
    num_before, num_here = values["world_size"], run.place.world_size
    if num_before != num_here and not is_lenient:
        raise Refused(
            f"{file} was saved by {num_before} processes, and here are {num_here}: start as many, or give "
            "`--resume auto`, which goes on with any number, equal up to rounding"
        )
    if num_before != num_here and run.place.rank == 0:
        print(f"{num_before} processes saved the checkpoint and {num_here} go on: equal up to rounding", flush=True)


def _say_what_differs(values, run):
    before, here = values.get("how", {}), _how(run)  # old checkpoints do not have it
    differing = [name for name, value in here.items() if before.get(name, value) != value]
    if differing and run.place.rank == 0:
        said = ", ".join(f"--{name.replace('_', '-')} {before[name]} → {here[name]}" for name in differing)
        print(f"other than in the checkpoint, from here on: {said}", flush=True)


def _restore(values, run):
    model, optimizer = values["model"], values["optimizer"]
    if _are_stages(run):  # keep only this rank's layers
        mine, group = run.core.state_dict().keys(), optimizer["param_groups"][0]
        model = {name: value for name, value in model.items() if name in mine}
        optimizer = {
            "state": {name: value for name, value in optimizer["state"].items() if name in mine},
            "param_groups": [group | {"params": [name for name in group["params"] if name in mine]}],
        }
    if missing := sorted(run.core.state_dict().keys() - model.keys()):  # torch accepts an empty dict
        raise KeyError(f"it has no {', '.join(missing)}")
    how = StateDictOptions(full_state_dict=not _are_stages(run))  # each rank takes its shards
    if optimizer["state"] and run.options.momentum:
        set_state_dict(run.core, run.optimizer, model_state_dict=model, optim_state_dict=optimizer, options=how)
    else:  # set_state_dict would fail: without momentum, SGD has no state
        set_model_state_dict(run.core, model, options=how)
    for group in run.optimizer.param_groups:
        group["momentum"] = run.options.momentum  # overrides the checkpoint's, just loaded
    _restore_progress(values, run)


def _restore_progress(values, run):
    run.scaler.load_state_dict(values["scaler"])
    run.epoch, run.step = values["epoch"], values["step"]
    run.loss_sum, run.figures = values["loss_sum"], values["figures"]
