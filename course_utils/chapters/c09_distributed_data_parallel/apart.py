"""Check that replicas are equal: how far this rank's parameters are from those of rank 0."""

import torch
import torch.distributed as dist


def distance_from_rank_0(model):
    """Return the largest absolute difference between a parameter here and on rank 0; every rank must call this."""
    mine = torch.cat([p.detach().view(-1) for p in model.parameters()])
    theirs = mine.clone()
    dist.broadcast(theirs, src=0)
    return (mine - theirs).abs().max().item()
