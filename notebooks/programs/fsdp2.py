"""Train a network on the digits, in one process or sharded. "FSDP" marks what only several need.

    python fsdp2.py [FILE]                                       one process; FILE gets the weights
    torchrun --standalone --nproc-per-node 2 fsdp2.py [FILE]     two: a GPU each, or on the CPU
"""

import os  # FSDP
import sys

import torch
import torch.distributed as dist  # FSDP
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict  # FSDP
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
torch.set_default_dtype(torch.float64)  # so that one and two processes print the same digits
torch.manual_seed(0)  # the same start everywhere
blocks = [nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(4)]
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), *blocks, nn.Linear(128, 10)).to(device)
if dist.is_initialized():  # FSDP: each rank keeps its part of every parameter
    mesh = dist.init_device_mesh(device.type, (world_size,))  # FSDP: all ranks in one row
    for unit in [*blocks, model]:  # FSDP: each block is a unit; the rest is one more
        fully_shard(unit, mesh=mesh)  # FSDP: hooks gather, free, reduce-scatter
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)  # after sharding: its state is sharded
digits = load_images("digits")
data = TensorDataset(digits.images.double(), digits.labels)
sampler = DistributedSampler(data, world_size, rank)  # FSDP: each rank its own images
loader = DataLoader(data, 64 // world_size, sampler=sampler, drop_last=True)  # FSDP: part of 64
for epoch in range(3):
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
state = model.state_dict()
if dist.is_initialized():  # FSDP: every rank gives its parts, rank 0 gets whole tensors
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)  # FSDP
    state = get_model_state_dict(model, options=options)  # FSDP
    dist.destroy_process_group()  # FSDP
if rank == 0 and len(sys.argv) > 1:  # FSDP: one file for all
    torch.save(state, sys.argv[1])
