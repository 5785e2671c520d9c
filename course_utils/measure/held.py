"""What autograd holds for the backward pass over time: each saved tensor from its forward to its backward."""

import time

import torch


class Held:
    """Inside a `with Held(model) as held:`, `held.curve` gains (seconds, bytes) whenever the bytes held change.

    The bytes are those of tensors that autograd has saved for pending backward passes; the seconds come from
    time.perf_counter(). Parameters and buffers of `model` do not count, and a tensor saved by two operations counts
    once.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._known = {tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers()]}
        self._uses: dict[tuple[int, int, int], int] = {}
        self._num_bytes = 0
        self.curve: list[tuple[float, int]] = []

    def __enter__(self):
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)
        self._hooks.__enter__()
        self._note(0)
        return self

    def __exit__(self, *exception):
        self._hooks.__exit__(*exception)
        self._note(0)

    def _pack(self, tensor):
        storage = tensor.untyped_storage()._cdata
        if storage in self._known or tensor.layout != torch.strided:
            return tensor
        return _Saved(tensor, (storage, tensor.storage_offset(), tensor.nbytes), self)

    def _use(self, key, more):
        before = self._uses.get(key, 0)
        self._uses[key] = before + more
        if not before or not self._uses[key]:  # first saved, or freed by its last user
            self._note(more * key[2])

    def _note(self, more):
        self._num_bytes += more
        self.curve.append((time.perf_counter(), self._num_bytes))


class _Saved:
    """A saved tensor; autograd drops this object once the operation's backward has run."""

    def __init__(self, tensor, key, held):
        self.tensor, self._key, self._held = tensor, key, held
        held._use(key, 1)

    def __del__(self):
        self._held._use(self._key, -1)


def _unpack(saved):
    return saved.tensor if isinstance(saved, _Saved) else saved
