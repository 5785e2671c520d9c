"""Records which tensors are written to, to catch writes that only reach a copy.

On the CPU `.cpu()` and `.to()` return the tensor itself; on a GPU they return a copy.
"""

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Writes(TorchDispatchMode):
    """Inside, `reached(tensor)` says whether an operation wrote to the tensor's memory; works on fake GPUs, too."""

    def __init__(self):
        super().__init__()
        self.written = {}  # {memory: tensor}; kept, so that no other gets its memory

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = {argument.name: value for argument, value in zip(operation._schema.arguments, args)} | kwargs
        for argument in operation._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                tensors = [t for t in tree_leaves(given.get(argument.name)) if t is not None]
                self.written.update((t.untyped_storage()._cdata, t) for t in tensors)
        return operation(*args, **kwargs)

    def reached(self, tensor):
        return tensor.untyped_storage()._cdata in self.written
