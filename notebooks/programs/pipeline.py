"""Train a network on the digits, in one process or as a pipeline. "PIPE" marks the difference.

    python pipeline.py [FILE]                                    one process; FILE takes the weights
    torchrun --standalone --nproc-per-node 2 pipeline.py [FILE]  a process for each stage
"""

import os  # PIPE
import sys

import torch
import torch.distributed as dist  # PIPE
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # PIPE
from torch.utils.data import DataLoader, TensorDataset

from course_utils.data import load_images

env = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}  # PIPE: of one process
rank, world_size, local_rank, num_local = (int(os.getenv(*each)) for each in env.items())  # PIPE
on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= num_local  # PIPE: one for each
device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")  # PIPE: its own GPU
if "RANK" in os.environ:  # PIPE: torchrun has started this process
    if on_gpu:  # PIPE
        torch.cuda.set_device(device)  # PIPE: the GPU that NCCL uses
    dist.init_process_group("nccl" if on_gpu else "gloo")  # PIPE
torch.set_default_dtype(torch.float64)  # so that one and two processes print the same digits
torch.manual_seed(0)  # the same start, and the same order of the images, everywhere
blocks = [nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(4)]
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), *blocks, nn.Linear(128, 10))
first, last = (len(model) * place // world_size for place in (rank, rank + 1))  # PIPE: from, to
model = model[first:last].to(device)  # PIPE: this rank's stage; layers keep their names
if dist.is_initialized():  # PIPE: messages between stages, and the order of tasks
    stage = PipelineStage(model, rank, world_size, device)  # PIPE
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=F.cross_entropy)  # PIPE: 8 of 8 images
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)  # after the cut: its state is cut, too
digits = load_images("digits")
data = TensorDataset(digits.images.double(), digits.labels)
for epoch in range(3):
    losses = []
    for x, y in DataLoader(data, 64, shuffle=True, drop_last=True):
        optimizer.zero_grad()
        if dist.is_initialized():  # PIPE: the first stage gets the images, the last one the labels
            images, found = [x.to(device)] if rank == 0 else [], []  # PIPE: found: each part's loss
            labels = {"target": y.to(device), "losses": found} if last == 7 else {}  # PIPE
            schedule.step(*images, **labels)  # PIPE: forward, backward, and all messages
            losses += [torch.stack(found).mean()] if found else []  # PIPE
        else:
            losses.append(F.cross_entropy(model(x.to(device)), y.to(device)))
            losses[-1].backward()
        optimizer.step()
    if losses:  # PIPE: the last stage alone knows the loss
        print(f"epoch {epoch}: loss {torch.stack(losses).mean().item():.9f}")
state = model.cpu().state_dict()
if dist.is_initialized():  # PIPE: every rank gives its layers
    dist.all_gather_object(parts := [None] * world_size, state)  # PIPE
    state = {name: value for part in parts for name, value in part.items()}  # PIPE
    dist.destroy_process_group()  # PIPE
if rank == 0 and len(sys.argv) > 1:  # PIPE: one file for all
    torch.save(state, sys.argv[1])
