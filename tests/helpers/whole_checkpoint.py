"""Read a checkpoint of torch.distributed.checkpoint without any rank."""

import warnings

import torch
import torch.distributed.checkpoint as dcp


def whole(path):
    """{name: the whole tensor} of all tensors in the checkpoint folder `path`."""
    table = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(of.size, dtype=of.properties.dtype) for name, of in table.items() if hasattr(of, "size")
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is one process
        dcp.load(tensors, checkpoint_id=path, no_dist=True)
    return tensors
