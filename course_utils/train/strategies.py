"""The models, and six ways to divide the training of one of them.

A strategy takes the whole model, and returns the part that this process trains. Lines that one device would not need
are marked as in the program.
"""

import contextlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh  # NEW
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # FSDP
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe  # PIPE
from torch.distributed.tensor import Replicate  # TP
from torch.distributed.tensor import parallel as tp  # TP
from torch.nn.parallel import DistributedDataParallel  # DDP

from .. import hardware, models

MAKERS = {
    "digits": models.DigitsNet,
    "lecture": models.LectureNet,
    "mlp": models.mlp,
    "transformer": models.transformer,
}
CUTS = {  # TP: the layers of each model that are cut by columns, and those, next after them, that are cut by rows
    "digits": (["fc1"], ["fc2"]),  # TP
    "lecture": (["fc1"], ["fc2"]),  # TP
    "mlp": (["[1-4].0"], ["[1-4].2"]),  # TP: of blocks 1 to 4
    "transformer": (
        [f"[1-4].{name}" for name in ("attention.q", "attention.k", "attention.v", "mlp.up")],  # TP
        ["[1-4].attention.out", "[1-4].mlp.down"],
    ),  # TP
}


def single(model, run):
    return model


def dp(model, run):
    gpus = list(range(len(hardware.gpus()))) if run.device.type == "cuda" else []  # DP
    return nn.DataParallel(model, gpus) if gpus else model  # DP: in each step it copies the model, and cuts the batch


def ddp(model, run):
    device_ids = [run.device.index] if run.device.type == "cuda" else None  # DDP: its own GPU
    return DistributedDataParallel(model, device_ids=device_ids)  # DDP: equal starts, averaged gradients


def fsdp(model, run):
    replicas, world_size = run.options.replicas, run.place.world_size  # FSDP
    if replicas == 1:  # FSDP: all ranks in one row
        mesh = init_device_mesh(run.device.type, (world_size,))  # FSDP
    else:  # FSDP: HSDP: cut along the rows, which should each lie inside a node, and gradients averaged between them
        shape, names = (replicas, world_size // replicas), ("replicate", "shard")  # FSDP
        mesh = init_device_mesh(run.device.type, shape, mesh_dim_names=names)  # FSDP
    reduce_dtype = torch.float32 if run.sixteen else None  # FSDP: gathers move 16 bits, sums of gradients keep 32
    policy = MixedPrecisionPolicy(param_dtype=run.sixteen, reduce_dtype=reduce_dtype)  # FSDP: in place of autocast
    layers = [layer for layer in model.children() if any(True for _ in layer.parameters())]  # FSDP
    for unit in [*layers, model]:  # FSDP: each layer is a unit; what is left is one more
        fully_shard(unit, mesh=mesh, mp_policy=policy)  # FSDP: hooks gather, free, reduce-scatter
    return model


def pipeline(model, run):
    rank, world_size = run.place.rank, run.place.world_size  # PIPE
    first, last = (len(model) * place // world_size for place in (rank, rank + 1))  # PIPE: from, to
    return model[first:last]  # PIPE: layers keep their names


def tensor(model, run):
    mesh = init_device_mesh(run.device.type, (run.place.world_size,))  # TP: all ranks in one row
    columns, rows = CUTS[run.options.model]  # TP
    plan = {name: tp.ColwiseParallel() for name in columns} | {name: tp.RowwiseParallel() for name in rows}  # TP
    if run.options.model == "transformer":  # TP: q, k and v share their input, so its gradient is summed once
        shared = Replicate()  # TP
        plan["[1-4].attention"] = tp.PrepareModuleInput(input_layouts=shared, desired_input_layouts=shared)  # TP
    return tp.parallelize_module(model, mesh, plan)  # TP: an all-reduce forward and one backward for each pair


STRATEGIES = {"single": single, "dp": dp, "ddp": ddp, "fsdp": fsdp, "pipeline": pipeline, "tensor": tensor}


class EndToEnd:
    """Learns and predicts with a model that this process calls as a whole; other ranks may compute parts of it."""

    def __init__(self, model, run):
        self.model, self.dtype, self.scaler = model, run.dtype, run.scaler
        self.autocast = run.autocast() if run.options.strategy != "fsdp" else contextlib.nullcontext()

    def learn(self, x, y):  # (B, C, H, W), (B,): this rank's share of the batch
        with self.autocast:
            loss = F.cross_entropy(self.model(x).to(self.dtype), y)
        self.scaler.scale(loss).backward()
        return loss.detach()

    def predict(self, x):
        with self.autocast:
            return self.model(x).argmax(1)  # (B,)


class Staged:  # PIPE
    """Learns and predicts with a pipeline stage: the first rank takes the batch, the last computes the losses."""

    def __init__(self, module, run):  # PIPE
        rank, world_size, parts = run.place.rank, run.place.world_size, run.options.micro_batches  # PIPE
        self.is_first, self.is_last = rank == 0, rank == world_size - 1  # PIPE
        self.autocast, self.nothing = run.autocast(), torch.zeros((), dtype=run.dtype, device=run.device)  # PIPE

        def loss_fn(output, y):  # PIPE: the mean over a micro-batch; the schedule takes the mean over all of them
            return F.cross_entropy(output.to(run.dtype), y)  # PIPE

        stage, test_stage = (PipelineStage(module, rank, world_size, run.device) for _ in range(2))  # PIPE
        self.schedule = Schedule1F1B(stage, parts, loss_fn=loss_fn)  # PIPE: the order of tasks, and all messages
        self.forward = ScheduleGPipe(test_stage, parts)  # PIPE: without a loss it only goes forward

    def learn(self, x, y):  # PIPE
        losses = []  # PIPE: of the micro-batches
        labels = {"target": y, "losses": losses} if self.is_last else {}  # PIPE
        with self.autocast:  # PIPE
            self.schedule.step(*[x] * self.is_first, **labels)  # PIPE
        return torch.stack(losses).mean().detach() if losses else self.nothing  # PIPE

    def predict(self, x):  # PIPE
        with self.autocast:  # PIPE
            output = self.forward.step(*[x] * self.is_first)  # PIPE
        return output.argmax(1) if self.is_last else torch.full((len(x),), -1, device=x.device)  # PIPE: no class
