"""Train a network on the digits, in one process or several. "DDP" marks what several need.

    python ddp.py [FILE]                                      one process; FILE takes the weights
    torchrun --standalone --nproc-per-node 2 ddp.py [FILE]    two processes: on GPUs or on the CPU
"""

import os  # DDP
import sys

import torch
import torch.distributed as dist  # DDP
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel  # DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset  # DDP: the sampler

from course_utils.data import load_images

env = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1} | os.environ  # DDP
rank, local_rank = int(env["RANK"]), int(env["LOCAL_RANK"])  # DDP: which process this is
world_size, num_local = int(env["WORLD_SIZE"]), int(env["LOCAL_WORLD_SIZE"])  # DDP: how many
on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= num_local  # DDP: a GPU for each
device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")  # DDP: its own GPU
if "RANK" in os.environ:  # DDP: torchrun has started this process
    if on_gpu:  # DDP
        torch.cuda.set_device(device)  # DDP: the GPU that NCCL uses
    dist.init_process_group("nccl" if on_gpu else "gloo")  # DDP

torch.set_default_dtype(torch.float64)  # so that one and two processes print the same digits
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10),
).to(device)  # fmt: skip
if dist.is_initialized():  # DDP: equal starts, and averaged gradients after every backward()
    model = DistributedDataParallel(model, device_ids=[local_rank] if on_gpu else None)  # DDP
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

digits = load_images("digits")
data = TensorDataset(digits.images.double(), digits.labels)
sampler = DistributedSampler(data, world_size, rank)  # DDP: each rank its own images
loader = DataLoader(data, 64 // world_size, sampler=sampler, drop_last=True)  # DDP: its part of 64
for epoch in range(3):
    sampler.set_epoch(epoch)  # DDP: a new order in every epoch, the same on all ranks
    total = torch.zeros((), device=device)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        total += loss.detach() / len(loader)
    if dist.is_initialized():  # DDP: the mean over ranks; "work" is kept, or gloo frees it too late
        (work := dist.all_reduce(total.div_(world_size), async_op=True)).wait()  # DDP
    if rank == 0:  # DDP: one report for all
        print(f"epoch {epoch}: loss {total.item():.9f}")
if rank == 0 and len(sys.argv) > 1:  # DDP: one file for all
    torch.save(getattr(model, "module", model).state_dict(), sys.argv[1])  # DDP: unwrapped
if dist.is_initialized():  # DDP
    dist.destroy_process_group()  # DDP
