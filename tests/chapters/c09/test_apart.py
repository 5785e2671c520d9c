"""How far replicas are apart."""

import torch
import torch.distributed as dist
from torch import nn

from course_utils import launch
from course_utils.chapters.c09_distributed_data_parallel.apart import distance_from_rank_0


def measure_distance():
    model = nn.Linear(2, 1)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(dist.get_rank() / 4)
    return distance_from_rank_0(model), next(model.parameters()).max().item()


def test_the_distance_from_rank_0_changes_nothing():
    assert launch(measure_distance, world_size=3).results == [(0, 0), (0.25, 0.25), (0.5, 0.5)]
