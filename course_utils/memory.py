"""Where a training step's bytes are: weights, gradients, optimizer state, activations. Counted by storage."""

import torch


def num_bytes(tensors):
    """Return the bytes of the storages behind `tensors`, each storage counted once (views and tied weights share)."""
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage
    return sum(storage.nbytes() for storage in storages.values())


def weight_bytes(model):
    """Bytes of the model's parameters and buffers."""
    return num_bytes([*model.parameters(), *model.buffers()])


def gradient_bytes(model):
    """Bytes of the gradients that the model's parameters hold now."""
    return num_bytes(p.grad for p in model.parameters() if p.grad is not None)


def optimizer_bytes(optimizer):
    """Bytes of the tensors that the optimizer keeps from step to step (none before its first step)."""
    state = (value for values in optimizer.state.values() for value in values.values())
    return num_bytes(value for value in state if isinstance(value, torch.Tensor))


class Activations:
    """Counts what autograd saves for the backward pass inside a `with` block: `activations.num_bytes` afterwards.

    Parameters and buffers of `model` do not count: they are there anyway. Every saved tensor is kept until the block
    ends, or an address that is used again would be counted once for two tensors.
    """

    def __init__(self, model):
        self._known = {t.untyped_storage()._cdata for t in [*model.parameters(), *model.buffers()]}
        self._saved = []
        self.num_bytes = 0

    def __enter__(self):
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *exception):
        self._hooks.__exit__(*exception)
        self.num_bytes = num_bytes(self._saved)
        self._saved.clear()

    def _pack(self, tensor):
        if tensor.untyped_storage()._cdata not in self._known:
            self._saved.append(tensor)
        return tensor


def training_bytes(model, optimizer, compute_loss):
    """Run one forward pass and count everything: {"weights": …, "gradients": …, "optimizer state": …, "activations": …}.

    `compute_loss()` runs the forward pass and returns the loss. Gradients and optimizer state are what is there after
    the backward pass and one step, which are made.
    """
    with Activations(model) as activations:
        loss = compute_loss()
    loss.backward()
    optimizer.step()
    return {
        "weights": weight_bytes(model),
        "gradients": gradient_bytes(model),
        "optimizer state": optimizer_bytes(optimizer),
        "activations": activations.num_bytes,
    }
