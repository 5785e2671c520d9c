"""Train on while replicas die and new ones come: each replica is a process started by itself.

    python -m course_utils.parallel.membership 4    the coordinator prints its ADDRESS
    python going_on.py ADDRESS NUMBER [FILE]        in four terminals, NUMBER from 0 to 3; kill one
    python going_on.py ADDRESS 4                    a new one, at any time

The four begin when all are there. FILE takes the weights at the end.
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from course_utils.data import load_images
from course_utils.hardware import rank_device
from course_utils.parallel.membership import Member

NUM_STEPS, BATCH_SIZE, NUM_BUCKETS = 60, 240, 3  # of 240 images, whoever shares them

torch.set_num_threads(1)  # the replicas share the cores
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)  # the same start everywhere
device = rank_device()
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10),
).to(device)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
digits = load_images("digits")
images, labels = digits.images.double().to(device), digits.labels.to(device)
number = int(sys.argv[2])

with Member(sys.argv[1], number) as member:  # waits until it is let in
    step = 0
    while step < NUM_STEPS:
        # A group with those who are there. A new one gets model, optimizer and step from another.
        step = member.meet(step, model, optimizer)
        batch = torch.arange(step * BATCH_SIZE, (step + 1) * BATCH_SIZE) % len(images)
        own = batch.tensor_split(member.world_size)[member.rank]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[own]), labels[own], reduction="sum")
        loss.backward()
        # Sums over samples, and their number: it need not be the same on all, or in all steps.
        parts = [parameter.grad.flatten() for parameter in model.parameters()]
        gradients = torch.cat([*parts, torch.tensor([loss.detach(), len(own)], device=device)])
        is_committed = False
        while not is_committed:  # again, with the same gradients, if somebody has died
            member.meet(step, model, optimizer)  # a group of those who are left
            sums = [bucket.clone() for bucket in gradients.chunk(NUM_BUCKETS)]
            is_committed = member.commit(member.all_reduce(sums))  # the same answer for all
        *parts, (total_loss, num_samples) = torch.cat(sums).split([*map(len, parts), 2])
        for parameter, part in zip(model.parameters(), parts):
            parameter.grad = (part / num_samples).view_as(parameter)  # the mean
        optimizer.step()
        print(f"replica {number}, step {step}: loss {total_loss / num_samples:.9f}, "
              f"{num_samples:.0f} images, members {member.members}", flush=True)
        step += 1
if len(sys.argv) > 3:
    torch.save(model.state_dict(), sys.argv[3])
