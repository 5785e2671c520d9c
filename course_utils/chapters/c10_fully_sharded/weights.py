"""Weights that are gathered from shards: when each comes, when it is used, and how many are in memory at once."""

import weakref

import torch
from torch.utils._pytree import tree_leaves

from ...checks.watch.collectives import Collectives

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "mul", "linear", "matmul"}


class Weights(Collectives):
    """Notes ("gather", layer), ("wait", layer) and ("compute", layer) in their order, and how many weights were alive
    at most.

    Gathers come in the layers' order; by its shape, which no other layer has, a weight is known where it is computed
    with.
    """

    def __init__(self, shapes):
        super().__init__()
        self._layers = {frozenset(shape): layer for layer, shape in enumerate(shapes)}
        self._holders = {}  # {storage: (layer, weak reference)}; a buffer that is used again changes hands
        self.events, self.most_alive, self._num_gathers = [], 0, 0

    def started(self, name, tensors):
        if "gather" not in name:
            return None
        layer, self._num_gathers = self._num_gathers, self._num_gathers + 1
        self._note("gather", layer, tensors)
        return layer

    def arrived(self, layer):
        if layer is not None:
            self._note("wait", layer)

    def _note(self, event, layer, tensors=()):
        self.events.append((event, layer))
        for storage in (tensor.untyped_storage() for tensor in tensors):
            self._holders[storage._cdata] = layer, weakref.ref(storage)
        alive = {
            layer for layer, found in self._holders.values() if (storage := found()) is not None and storage.nbytes()
        }
        self.most_alive = max(self.most_alive, len(alive))

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.__name__.split(".")[0] in _PRODUCTS:
            for tensor in tree_leaves(args):
                layer = self._layers.get(frozenset(tensor.shape[-2:])) if isinstance(tensor, torch.Tensor) else None
                if layer is not None:
                    self._note("compute", layer, [tensor])  # it may be a copy of what was gathered
        return super().__torch_dispatch__(function, types, args, kwargs)
