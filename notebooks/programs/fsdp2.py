"""Train a network on the digits, in one process or sharded, and go on from the last checkpoint.

    python fsdp2.py FOLDER [EPOCHS]                                      one process
    torchrun --standalone --nproc-per-node 2 fsdp2.py FOLDER [EPOCHS]    two: a GPU each, or CPU

"FSDP" marks what only several processes need. No rank of several ever holds the whole model: it is
made on the meta device and filled layer by layer, and a rank saves its own shards, Adam's included.
Start the program again, on as many processes as you like, and it goes on after the last complete
epoch. (On several nodes, all of them must see FOLDER.) To get the weights in one file:

    python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER/epoch_2 FILE
"""

import os  # FSDP
import sys
from pathlib import Path

import torch
import torch.distributed as dist  # FSDP
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard  # FSDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset  # FSDP: the sampler

from course_utils.data import load_images

env = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}  # FSDP: one process
rank, world_size, local_rank, num_local = (int(os.getenv(*each)) for each in env.items())  # FSDP
on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= num_local  # FSDP: one for each
device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")  # FSDP: its own GPU
if "RANK" in os.environ:  # FSDP: torchrun has started this process
    if on_gpu:  # FSDP
        torch.cuda.set_device(device)  # FSDP: the GPU that NCCL uses
    dist.init_process_group("nccl" if on_gpu else "gloo")  # FSDP
    mesh = dist.init_device_mesh(device.type, (world_size,))  # FSDP: all ranks in one row
folder, num_epochs = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3

torch.set_default_dtype(torch.float64)  # so that one and two processes print the same digits
torch.manual_seed(0)  # the same start everywhere
with torch.device("meta"):  # shapes, and no memory
    blocks = [nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(4)]
    model = nn.Sequential(nn.Linear(64, 128), *blocks, nn.Linear(128, 10))
for layer in model:
    layer.to_empty(device="cpu")  # whose random numbers are the same on every machine
    for module in layer.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()  # the same numbers on every rank
        elif list(module.parameters(recurse=False)):
            raise TypeError(f"{type(module).__name__}: fill its own parameters here")
    layer.to(device)
    if dist.is_initialized():  # FSDP: a layer is a unit, and each rank keeps its part of it
        fully_shard(layer, mesh=mesh)  # FSDP: now the layer is whole nowhere
if dist.is_initialized():  # FSDP
    fully_shard(model, mesh=mesh)  # FSDP: its hooks gather, free, reduce-scatter
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)  # after sharding: its state is sharded


def state():
    """What a checkpoint holds; of sharded tensors, this rank's shards."""
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))


complete = [path.parent.name for path in folder.glob("epoch_*/.metadata")]  # it is written last
first = 1 + max((int(name.removeprefix("epoch_")) for name in complete), default=-1)
if first > 0:
    saved = state()  # tensors to be overwritten
    dcp.load(saved, checkpoint_id=folder / f"epoch_{first - 1}")
    parts = {"model_state_dict": saved["model"], "optim_state_dict": saved["optimizer"]}
    set_state_dict(model, optimizer, **parts)

digits = load_images("digits")
data = TensorDataset(digits.images.flatten(1).double(), digits.labels)
sampler = DistributedSampler(data, world_size, rank)  # FSDP: each rank its own images
loader = DataLoader(data, 64 // world_size, sampler=sampler, drop_last=True)  # FSDP: part of 64
for epoch in range(first, num_epochs):
    sampler.set_epoch(epoch)  # FSDP: a new order in every epoch, the same on all ranks
    total = torch.zeros((), device=device)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        total += loss.detach() / len(loader)
    if dist.is_initialized():  # FSDP: the mean over ranks
        dist.all_reduce(total.div_(world_size))  # FSDP
    if rank == 0:  # FSDP: one report for all
        print(f"epoch {epoch}: loss {total.item():.9f}")
    dcp.save(state(), checkpoint_id=folder / f"epoch_{epoch}")  # delete old ones as you need room
if dist.is_initialized():  # FSDP
    dist.destroy_process_group()  # FSDP
