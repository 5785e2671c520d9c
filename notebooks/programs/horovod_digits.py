"""Train a network on the digits with Horovod. "HVD" marks what only several processes need.

    horovodrun -np 2 python horovod_digits.py                                      2 processes
    horovodrun -np 12 -H server1:4,server2:4,server3:4 python horovod_digits.py    3 servers
"""

import horovod.torch as hvd  # HVD
import torch
import torch.nn.functional as F

from course_utils.data import load_images
from course_utils.models import DigitsNet

hvd.init()  # HVD
on_gpu = torch.cuda.is_available() and hvd.nccl_built()  # HVD: Horovod knows GPUs, too
device = torch.device("cuda", hvd.local_rank()) if on_gpu else torch.device("cpu")  # HVD: its GPU

torch.manual_seed(0)
model = DigitsNet().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # HVD: equal starts
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # HVD: averaged gradients

digits = load_images("digits", size=16)
batches = list(zip(digits.images.split(64), digits.labels.split(64)))[:10]
for step, (x, y) in enumerate(batches):
    x, y = (t.chunk(hvd.size())[hvd.rank()].to(device) for t in (x, y))  # HVD: its part
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    loss = hvd.allreduce(loss.detach())  # HVD: the mean over ranks
    if hvd.rank() == 0:  # HVD: one report for all
        print(f"step {step}: loss {loss.item():.6f}")
