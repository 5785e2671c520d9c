"""Print which of how many ranks this is, then meet the others again and again until one of them is lost."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
print(f"rank {rank} of {ranks}: {64 // ranks} images of each batch", flush=True)
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.05)
