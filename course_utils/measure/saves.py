"""What saving a checkpoint costs the steps around it: where all ranks wait for it, and where a thread writes it."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import Future
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

from ..hardware import rank_device
from ..paced import PacedFileSystem
from . import throughput

WAYS = ("synchronous", "asynchronous", "asynchronous, paced")


def step_times(
    folder: str | os.PathLike[str],
    rounds: int = 2,
    before: int = 3,
    after: int = 6,
    num_bytes: int = 200_000_000,
    batch_size: int = 16,
    bytes_per_s: float = 25e6,
    ways: tuple[str, ...] = WAYS,
) -> dict[str, list[dict[str, Any]]]:
    """Time steps before and after `rounds` saves in each of the `ways`, in turn; every rank must call it.

    A checkpoint has about `num_bytes` over all ranks: a sharded network and AdamW's state. Each is written into
    `folder` and removed; paced, each rank writes at most `bytes_per_s`. Returns
    {way: [{"before": [s], "save": s, "during": [s], "written": s, "after": [s]}]}: the seconds of steps before the
    save; until the save returned; of the steps that began while it was being written; from its beginning until it was
    complete; and of the steps after that.
    """
    training = _Training(num_bytes, batch_size, bytes_per_s)
    training.step()
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in ways:
            path = Path(folder, f"{number} {way}")
            found[way].append(_around_save(training, way, path, before, after))
            dist.barrier()
            if dist.get_rank() == 0:
                shutil.rmtree(path)
    return found


def ratio(rows: list[dict[str, Any]]) -> float:
    """Return the median time of the steps during saves over that of all others; NaN if no step began during a save.

    `rows` are those of one way.
    """
    others = [seconds for row in rows for seconds in (*row["before"], *row["after"])]
    during = [seconds for row in rows for seconds in row["during"]]
    return median(during) / median(others) if during else float("nan")


def lost_s(row: dict[str, Any]) -> float:
    """Return by how many seconds a save delayed the training: its own, and what steps meanwhile took longer."""
    usual = median([*row["before"], *row["after"]])
    return row["save"] + sum(row["during"]) - len(row["during"]) * usual


class _Training:
    """A sharded network with AdamW, trained on random numbers, and what saving it needs."""

    def __init__(self, num_bytes: int, batch_size: int, bytes_per_s: float) -> None:
        # gloo has no reduce-scatter for ranks that share a GPU
        device = rank_device() if "nccl" in dist.get_backend_config() else torch.device("cpu")
        num_layers = 4
        width = round((num_bytes / 12 / num_layers) ** 0.5)  # a parameter and Adam's two averages, 4 bytes each
        layers = [nn.Linear(width, width, device=device) for _ in range(num_layers)]
        self.model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
        mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
        for unit in (*layers, self.model):
            fully_shard(unit, mesh=mesh, reshard_after_forward=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.x = torch.randn(batch_size, width, device=device)
        self.group = dist.new_group(backend="gloo")  # for the thread that writes
        self.bytes_per_s = bytes_per_s

    def step(self) -> tuple[float, float]:
        """Train one step; return when it began and ended, in seconds of `time.perf_counter`."""
        begin = throughput.now()
        self.optimizer.zero_grad()
        self.model(self.x).square().mean().backward()
        self.optimizer.step()
        return begin, throughput.now()

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer["state"]}

    def save(self, way: str, path: Path) -> Future[Any] | None:
        """Save to the folder `path`; return a Future, or None if the save is complete."""
        if way == "synchronous":
            dcp.save(self.state(), checkpoint_id=path)
            return None
        writer = dcp.FileSystemWriter(path)
        if way == "asynchronous, paced":
            writer.fs = PacedFileSystem(self.bytes_per_s)
        stager = DefaultStager(StagingOptions(*4 * [False]))  # for one save: torch 2.11 closes it afterwards
        return dcp.async_save(self.state(), storage_writer=writer, process_group=self.group, async_stager=stager)


def _around_save(training: _Training, way: str, path: Path, before: int, after: int) -> dict[str, Any]:
    done: list[float] = []
    earlier = [training.step() for _ in range(before)]
    dist.barrier()
    begin = throughput.now()
    pending = training.save(way, path)
    returned = time.perf_counter()
    if pending:
        pending.add_done_callback(lambda _: done.append(time.perf_counter()))
    later = [training.step() for _ in range(after)]
    if pending:
        pending.result()
        while not done:  # the callback runs a moment after `result` has returned
            time.sleep(0.001)
    end = done[0] if pending else returned
    return {
        "before": [stop - start for start, stop in earlier],
        "save": returned - begin,
        "during": [stop - start for start, stop in later if start < end],
        "written": end - begin,
        "after": [stop - start for start, stop in later if start >= end],
    }
