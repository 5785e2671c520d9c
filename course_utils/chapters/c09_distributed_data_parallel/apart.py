"""Are replicas still one network? How far the parameters of this rank are from those of rank 0."""

import torch
import torch.distributed as dist


def distance_from_rank_0(model):
    """The largest difference between a parameter here and the same one on rank 0. Every rank calls it alike."""
    mine = torch.cat([p.detach().view(-1) for p in model.parameters()])
    theirs = mine.clone()
    dist.broadcast(theirs, src=0)
    return (mine - theirs).abs().max().item()
