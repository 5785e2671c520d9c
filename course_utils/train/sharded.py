"""Sharded checkpoints, written while training goes on: one folder each, into which every rank writes its own shards.

torch.distributed.checkpoint (DCP) writes and flushes the shards first, and then, under another name, the table
`.metadata`, which it renames at the end. A folder with that table is complete; one without was interrupted. The table
is a pickle, and reading one can run code: resume only from folders that you trust.
"""

import re
import shutil
import warnings
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from .. import checkpoint
from ..checkpoint import CheckpointError
from ..paced import PacedFileSystem

TABLE = ".metadata"
VALUES = "run.pt"  # what is no tensor of the model or optimizer


class Writer:
    """Writes checkpoints into the folders step_000120, … of `folder`, one at a time, and keeps the newest `keep`.

    Make it on all ranks at once, and call its methods on all ranks at the same step. Each rank writes at most
    `bytes_per_s`, if given, until somebody waits for the checkpoint.
    """

    def __init__(self, folder, keep, bytes_per_s=None):
        self.folder, self.keep, self.bytes_per_s, self.pending = Path(folder), keep, bytes_per_s, None
        self.files = None  # where the pending checkpoint goes
        # DCP warns that one process is no group; from its own thread, so that no `with` would keep this back.
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        # A group of its own: the messages of the background thread must not mix with those of training.
        self.group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        self.is_first = self.group is None or dist.get_rank() == 0

    def begin(self, step, values):
        """Make the folder for `step`, and write the plain `values` and the random states into it.

        Call this on rank 0 only, after `wait`. Raises CheckpointError or OSError.
        """
        folder = self._folder(step)
        if not self.folder.is_dir():
            raise CheckpointError(f"{folder} could not be saved: there is no folder {self.folder}; make it first")
        remove(folder)  # an interrupted one, or a damaged one, from before which the run has gone on
        folder.mkdir()
        checkpoint.save(folder / VALUES, **values)

    def write(self, step, tensors):
        """Copy `tensors`, a nested dict, and return; a thread then writes the copy. Call `begin` on rank 0 before."""
        writer = _ShardWriter(self._folder(step))
        if self.bytes_per_s:
            writer.fs = self.files = PacedFileSystem(self.bytes_per_s)
        stager = DefaultStager(StagingOptions(*4 * [False]))  # for one save: torch 2.11 closes it afterwards
        self.pending = dcp.async_save(tensors, storage_writer=writer, process_group=self.group, async_stager=stager)
        if self.is_first:
            self.pending.add_done_callback(lambda done: done.exception() or prune(self.folder, self.keep, step))

    def wait(self):
        """Wait until the last checkpoint is complete. Raises CheckpointError, on all ranks, if it could not be."""
        pending, self.pending = self.pending, None
        if self.files:
            self.files.hurry()
        try:
            if pending:
                pending.result()
        except CheckpointException as error:
            raise CheckpointError(f"a checkpoint in {self.folder} could not be saved: {reason(error)}") from error

    def _folder(self, step):
        return self.folder / f"step_{step:06d}"


class _ShardWriter(dcp.FileSystemWriter):
    """Raises the system's error, such as a full disk's, where torch raises one of its own with that as its context."""

    def write_data(self, plan, planner):
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def complete(folder):
    """Return the complete checkpoints in `folder`, the newest first."""
    return [path for path in _all(folder) if (path / TABLE).is_file()]


def prune(folder, keep, step):
    """Remove the checkpoints in `folder` before the newest `keep` up to `step`, and interrupted ones before `step`.

    Later ones stay: they may be what a run before this one saved, or be under way.
    """
    until = [path for path in _all(folder) if _step(path) <= step]
    kept = [path for path in until if (path / TABLE).is_file()][:keep]
    for path in until:
        if path not in kept:
            remove(path)


def remove(path):
    """Remove a checkpoint, its table first, so that what a kill leaves of it does not look complete."""
    (path / TABLE).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def load(path, tensors):
    """Read the checkpoint `path` into `tensors`, a nested dict of tensors with the right shapes; all ranks call it.

    Raises CheckpointError, on all ranks, if it is damaged or of another model.
    """
    try:
        dcp.load(tensors, checkpoint_id=path)
    except CheckpointException as error:
        raise CheckpointError(f"{path} cannot be loaded: {reason(error)}") from error


def names(path):
    """Return the names of the tensors in the checkpoint `path`, such as "model.0.weight"."""
    try:
        return dcp.FileSystemReader(path).read_metadata().state_dict_metadata.keys()
    except Exception as error:  # pickle raises many kinds of errors
        raise CheckpointError(f"{path} is damaged: its table {TABLE} cannot be read") from error


def reason(error):
    """Return in one sentence what DCP's exception, which holds one of each rank that failed, is about."""
    rank, (cause, _) = min(error.failures.items())
    text = getattr(cause, "strerror", None) or str(cause).partition("\n")[0] or type(cause).__name__
    file = f" {Path(cause.filename).name}" if getattr(cause, "filename", None) else ""
    return f"{text}{file} (rank {rank})"


def _all(folder):
    found = [path for path in Path(folder).glob("step_*") if re.fullmatch(r"step_\d+", path.name) and path.is_dir()]
    return sorted(found, key=_step, reverse=True)


def _step(path):
    return int(path.name.removeprefix("step_"))
