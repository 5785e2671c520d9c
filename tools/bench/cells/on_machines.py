"""Launches on several nodes, and the training program beside a bare loop."""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_utils import Nodes, Slurm, describe, launch, train
from course_utils.data import load_images
from course_utils.models import DigitsNet

describe()
launch(lambda: None, world_size=2)


def first_all_reduce():
    dist.all_reduce(torch.ones(1))
    return time.monotonic()


def on_nodes():
    return launch(first_all_reduce, world_size=4, on=Nodes(2)).results


def first(method):
    begin = time.monotonic()
    return max(method()) - begin


def on_slurm():
    """Seconds to the last rank's first all-reduce, and from there to the result."""
    begin = time.monotonic()
    last = max(launch(first_all_reduce, on=Slurm(nodes=2, workers_per_node=1)).results)
    return last - begin, time.monotonic() - last


def trained(arguments):
    launch(train.main, arguments, world_size=2, timeout=600)


def train_bare(num_epochs):
    """Do the program's training without the program; return the seconds of the last epoch's steps."""
    torch.manual_seed(0)
    digits, model = load_images("digits", size=16), DigitsNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(num_epochs):
        order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(epoch))
        begin = time.perf_counter()
        for chosen in order[: len(digits) // 64 * 64].split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(digits.images[chosen]), digits.labels[chosen]).backward()
            optimizer.step()
    return time.perf_counter() - begin


def alternate(num_rounds, num_epochs=3):
    """Run both in turn in one worker; return the ratio of medians of seconds per epoch, bare loop over program."""
    bare, program = [], []
    for _ in range(num_rounds):
        bare.append(train_bare(num_epochs))
        figures = train.main(["--batch-size", "64", "--epochs", str(num_epochs)])
        program.append(1437 // 64 * 64 / figures["images_per_s"])
    return min(bare) / min(program)


def bare_over_program():
    return launch(alternate, 5, world_size=1)[0]
