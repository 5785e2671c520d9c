"""Record when weights are gathered from shards and used, and how many are in memory at once."""

import weakref

import torch
from torch.utils._pytree import tree_leaves

from ...checks.watch.collectives import Collectives

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "mul", "linear", "matmul"}


class Weights(Collectives):
    """Record ("gather", layer), ("wait", layer) and ("compute", layer) in order, and the most weights alive at once.

    Gathers must come in the order of the layers. In computations, a weight is recognised by its shape; if several
    layers share a shape, the last one is recorded.
    """

    def __init__(self, shapes):
        super().__init__()
        self._layers = {frozenset(shape): layer for layer, shape in enumerate(shapes)}
        self._holders = {}  # {storage: (layer, weak reference)}; a reused buffer gets a new layer
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
                    self._note("compute", layer, [tensor])  # may be a copy of the gathered weight
        return super().__torch_dispatch__(function, types, args, kwargs)
