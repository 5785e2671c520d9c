"""A transformer block whose attention and MLP are split over ranks, as in chapter 12, between two given functions."""

import torch.distributed as dist
from torch import nn

# nn.Linear's weight is (out, in): columns are cut along dim 0, rows along dim 1.
_CUT_ALONG = {"q": 0, "k": 0, "v": 0, "up": 0, "out": 1, "down": 1}


class Between(nn.Module):
    """A part of the block between `before` and `after`, which hold the messages."""

    def __init__(self, part, before, after):
        super().__init__()
        self.part, self.before, self.after = part, before, after

    def forward(self, x):
        return self.after(self.part(self.before(x)))


def split_block(block, before, after):
    """Return `block`, a `models.TransformerBlock`, with this rank's heads and hidden features only.

    `before` and `after` are `copy_to_ranks` and `sum_over_ranks` of `parallel.tensor`, or its `gather_parts` and
    `sum_parts`.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for name, layer in list(block.named_modules()):
        dim = _CUT_ALONG.get(name.rpartition(".")[2])
        for parameter, p in list(layer.named_parameters(recurse=False)) if dim is not None else ():
            setattr(layer, parameter, nn.Parameter(p.detach().chunk(world_size, dim)[rank].clone()))
    block.attention, block.mlp = (Between(part, before, after) for part in (block.attention, block.mlp))
    return block
