"""Train a network on the digits, in one process or with split layers. "TP" marks the difference.

    python tensor_parallel.py [FILE]                                      FILE takes the weights
    torchrun --standalone --nproc-per-node 2 tensor_parallel.py [FILE]    each has half of a layer
"""

import os  # TP
import sys

import torch
import torch.distributed as dist  # TP
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor  # TP
from torch.distributed.tensor import parallel as tp  # TP
from torch.utils.data import DataLoader, TensorDataset

from course_utils.data import load_images

env = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}  # TP: of one process
rank, world_size, local_rank, num_local = (int(os.getenv(*each)) for each in env.items())  # TP
on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= num_local  # TP: one for each
device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")  # TP: its own GPU
if "RANK" in os.environ:  # TP: torchrun has started this process
    if on_gpu:  # TP
        torch.cuda.set_device(device)  # TP: the GPU that NCCL uses
    dist.init_process_group("nccl" if on_gpu else "gloo")  # TP
torch.set_default_dtype(torch.float64)  # so that one and two processes print the same digits
torch.manual_seed(0)  # the same start, and the same order of the images, everywhere
blocks = [nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128)) for _ in range(2)]
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), *blocks, nn.Linear(128, 10)).to(device)
if dist.is_initialized():  # TP: in every block the first layer by columns, the second by rows
    mesh = dist.init_device_mesh(device.type, (world_size,))  # TP: all ranks in one row
    plan = {"0": tp.ColwiseParallel(), "2": tp.RowwiseParallel()}  # TP
    for block in blocks:  # TP: one all-reduce forward, one backward
        tp.parallelize_module(block, mesh, plan)  # TP
# TP: on GPUs Adam would update all parameters at once, and refuse DTensors among tensors.
optimizer = torch.optim.Adam(model.parameters(), lr=0.001, foreach=False)  # TP: after the split
digits = load_images("digits")
data = TensorDataset(digits.images.double(), digits.labels)
for epoch in range(3):
    losses = []
    for x, y in DataLoader(data, 64, shuffle=True, drop_last=True):  # every rank all images
        optimizer.zero_grad()
        losses.append(F.cross_entropy(model(x.to(device)), y.to(device)))
        losses[-1].backward()
        optimizer.step()
    if rank == 0:  # TP: one report for all
        print(f"epoch {epoch}: loss {torch.stack(losses).mean().item():.9f}")
state = model.state_dict()
if dist.is_initialized():  # TP: whole tensors of the shards; every rank takes part
    state = {name: value.full_tensor() if isinstance(value, DTensor) else value  # TP
             for name, value in state.items()}  # TP
    dist.destroy_process_group()  # TP
if rank == 0 and len(sys.argv) > 1:  # TP: one file for all
    torch.save(state, sys.argv[1])
