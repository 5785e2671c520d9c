"""Train so that a killed process costs seconds. "DDP" as in ddp.py; "ELASTIC" marks what is new.

    python elastic.py CHECKPOINT [FILE]                      one process; FILE takes the weights
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1              each attempt then has a new store
    torchrun --standalone --nproc-per-node 2 --max-restarts 3 elastic.py CHECKPOINT [FILE]
"""

import os  # DDP
import sys
from pathlib import Path  # ELASTIC

import torch
import torch.distributed as dist  # DDP
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel  # DDP

from course_utils import checkpoint  # ELASTIC: whole or not at all
from course_utils.data import load_images
from course_utils.models import DigitsNet

env = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}  # DDP: of one process
rank, local_rank, world_size, num_local = (int(os.getenv(*each)) for each in env.items())  # DDP
on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= num_local  # DDP: one for each
device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")  # DDP: its own GPU
if "RANK" in os.environ:  # DDP
    torch.cuda.set_device(device) if on_gpu else None  # DDP
    dist.init_process_group("nccl" if on_gpu else "gloo")  # DDP

torch.manual_seed(0)
model = trained = DigitsNet().to(device, torch.float64)  # one and two processes print the same
if dist.is_initialized():  # DDP
    trained = DistributedDataParallel(model, device_ids=[local_rank] if on_gpu else None)  # DDP
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
digits = load_images("digits", size=16)
per_epoch, total = len(digits) // 32, 0.0
path, begin = Path(sys.argv[1]), 0  # ELASTIC: one file for all nodes
state = {"model": model, "optimizer": optimizer}  # ELASTIC
if path.exists():  # ELASTIC: all ranks go on from what was saved last
    begin, total = checkpoint.load(path, **state)["progress"]  # ELASTIC
for step in range(begin, 3 * per_epoch):  # ELASTIC: it may begin inside an epoch
    epoch, place = divmod(step, per_epoch)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(epoch))
    chosen = order[32 * place : 32 * (place + 1)][rank::world_size]  # DDP: its part of 32
    x, y = digits.images[chosen].to(device).double(), digits.labels[chosen].to(device)
    optimizer.zero_grad()
    loss = F.cross_entropy(trained(x), y)
    loss.backward()
    optimizer.step()
    mean = loss.detach() / world_size  # DDP
    if dist.is_initialized():  # DDP
        dist.all_reduce(mean)  # DDP
    total = (total if place else 0.0) + mean.item() / per_epoch
    if (step + 1) % 5 == 0 and rank == 0:  # DDP, ELASTIC: one file for all
        checkpoint.save(path, **state, progress=[step + 1, total])  # ELASTIC
        print(f"step {step + 1}", flush=True)
    if place == per_epoch - 1 and rank == 0:  # DDP
        print(f"epoch {epoch}: loss {total:.9f}")
if rank == 0 and len(sys.argv) > 2:  # DDP
    torch.save(model.state_dict(), sys.argv[2])
dist.is_initialized() and dist.destroy_process_group()  # DDP
