"""Checkpoints written at a pace: no faster than it says, the same bytes, and at full speed once somebody waits."""

import threading
import time

import pytest
import torch
import torch.distributed.checkpoint as dcp

from course_utils.paced import PacedFileSystem

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")


def save(state, folder, files):
    writer = dcp.FileSystemWriter(folder)
    writer.fs = files
    dcp.save(state, storage_writer=writer)


def load(state, folder):
    empty = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(empty, checkpoint_id=folder)
    return empty


def test_a_checkpoint_takes_at_least_the_time_of_its_bytes_and_holds_them(tmp_path):
    state = {"a": torch.randn(700_000), "b": torch.randn(300_000)}  # 2.8 and 1.2 MB: more than a piece, and no multiple
    begin_s = time.monotonic()
    save(state, tmp_path / "paced", PacedFileSystem(20e6))
    assert time.monotonic() - begin_s >= 0.2  # 4 MB
    found = load(state, tmp_path / "paced")
    assert all(torch.equal(found[name], state[name]) for name in state)


def test_what_hurries_does_not_wait(tmp_path):
    state, files = {"a": torch.randn(700_000)}, PacedFileSystem(1.0)  # a month
    writing = threading.Thread(target=save, args=(state, tmp_path / "paced", files), daemon=True)
    writing.start()
    files.hurry()
    writing.join(60)
    assert not writing.is_alive()
    assert torch.equal(load(state, tmp_path / "paced")["a"], state["a"])
