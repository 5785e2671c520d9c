"""The keys of one server: their values, and a torch optimizer for them."""

import io

import torch
from torch import nn
from torch.sparse import check_sparse_tensor_invariants

# torch 2.11 warns unless this is said, even where `check_invariants` is passed. What holds by default stays as it is.
if not check_sparse_tensor_invariants.is_enabled():
    check_sparse_tensor_invariants.disable()


class Shard:
    """The keys of one server: `values` is {key: tensor}, `make_optimizer(list of parameters)` returns an optimizer."""

    def __init__(self, values, make_optimizer, states=None):
        self._make_optimizer = make_optimizer
        self.parameters = {name: nn.Parameter(value.detach().cpu().clone()) for name, value in values.items()}
        self._optimizer = make_optimizer(list(self.parameters.values()))
        for name, state in (states or {}).items():
            self._optimizer.state[self.parameters[name]] = state

    def read(self, rows):
        """The values of {key: rows or None}, flattened and concatenated in key order."""
        parts = [p.detach() if rows[name] is None else p.detach()[rows[name]] for name, p in self._chosen(rows)]
        return torch.cat([part.reshape(-1) for part in parts]) if parts else torch.empty(0)

    def gradients(self, rows, values):
        """The gradients, {key: gradient}, from their concatenated values; sparse where only rows were sent."""
        found, begin = {}, 0
        for name, p in self._chosen(rows):
            which = rows[name]
            shape = p.shape if which is None else (len(which), *p.shape[1:])
            piece = values[begin : begin + shape.numel() if which is None else begin + len(which) * p[0].numel()].view(
                shape
            )
            begin += piece.numel()
            found[name] = (
                piece if which is None else torch.sparse_coo_tensor(which[None], piece, p.shape, check_invariants=True)
            )
        return found

    def update(self, gradients):
        """Make one optimizer step with the summed gradients of a list of {key: gradient}."""
        for each in gradients:
            for name, gradient in each.items():
                p = self.parameters[name]
                p.grad = gradient if p.grad is None else p.grad + gradient
        self._optimizer.step()
        self._optimizer.zero_grad()

    def split(self, names):
        """Give away the keys `names`; return (the remaining shard, the argument for `joined`)."""
        values = {name: p.detach() for name, p in self.parameters.items()}
        states = {name: self._optimizer.state[p] for name, p in self.parameters.items() if p in self._optimizer.state}
        given, kept = (
            [{n: part[n] for n in part if (n in names) == away} for part in (values, states)] for away in (True, False)
        )
        return Shard(kept[0], self._make_optimizer, kept[1]), given

    def _chosen(self, rows):
        return [(name, self.parameters[name]) for name in rows]


def joined(given, make_optimizer):
    """The shard made of what several servers gave away."""
    values, states = {}, {}
    for each in given:
        values, states = values | each[0], states | each[1]
    return Shard(values, make_optimizer, states)


def as_bytes(thing):
    """Plain values and tensors serialised into one uint8 tensor."""
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def from_bytes(tensor):
    return torch.load(io.BytesIO(tensor.numpy().tobytes()), weights_only=True)
