"""The keys of one server: their values, and torch's optimizer for them."""

import io

import torch
from torch import nn


class Shard:
    """`values` is {key: tensor}; `make_optimizer(list of parameters)` makes one of torch.optim's."""

    def __init__(self, values, make_optimizer, states=None):
        self._make_optimizer = make_optimizer
        self.parameters = {name: nn.Parameter(value.detach().cpu().clone()) for name, value in values.items()}
        self._optimizer = make_optimizer(list(self.parameters.values()))
        for name, state in (states or {}).items():
            self._optimizer.state[self.parameters[name]] = state

    def read(self, rows):
        """The values of {key: rows or None} in one piece, key after key."""
        parts = [p.detach() if rows[name] is None else p.detach()[rows[name]] for name, p in self._chosen(rows)]
        return torch.cat([part.reshape(-1) for part in parts]) if parts else torch.empty(0)

    def gradients(self, rows, values):
        """{key: gradient}, a sparse one where only rows were sent, from their values in one piece."""
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
        """One step of the optimizer, with the sums of the gradients in a list of {key: gradient}."""
        for each in gradients:
            for name, gradient in each.items():
                p = self.parameters[name]
                p.grad = gradient if p.grad is None else p.grad + gradient
        self._optimizer.step()
        self._optimizer.zero_grad()

    def split(self, names):
        """Give the keys `names` away; return (the shard that is left, what `joined` takes of them)."""
        values = {name: p.detach() for name, p in self.parameters.items()}
        states = {name: self._optimizer.state[p] for name, p in self.parameters.items() if p in self._optimizer.state}
        given, kept = (
            [{n: part[n] for n in part if (n in names) == away} for part in (values, states)] for away in (True, False)
        )
        return Shard(kept[0], self._make_optimizer, kept[1]), given

    def _chosen(self, rows):
        return [(name, self.parameters[name]) for name in rows]


def joined(given, make_optimizer):
    """The shard of what several servers gave away."""
    values, states = {}, {}
    for each in given:
        values, states = values | each[0], states | each[1]
    return Shard(values, make_optimizer, states)


def as_bytes(thing):
    """Plain values and tensors as one uint8 tensor."""
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def from_bytes(tensor):
    return torch.load(io.BytesIO(tensor.numpy().tobytes()), weights_only=True)
