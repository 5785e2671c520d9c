"""Count a model's numbers from the module itself, by running it once on the meta device."""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from .networks import Layer, Network, Work

_aten = torch.ops.aten
# Bytes that an operation moves, in passes over its inputs and outputs: (forward, backward). Batch norm reads its input
# twice, for mean and variance. Where two paths meet, gradients are copied or added again.
_PASSES = {
    _aten.native_batch_norm: (1.5, 2.5),
    _aten.cudnn_batch_norm: (1.5, 2.5),
    _aten.add: (1, 1),
    _aten.add_: (1, 1),
}
_OTHERS = (1, 1.5)
WARP = 32  # lanes in lockstep: narrower products leave some idle


def count(
    module: torch.nn.Module,
    *example: torch.Tensor,
    parts: Sequence[torch.nn.Module] | None = None,
    element_bytes: int = 4,
) -> Network:
    """The Network of `module`, with a Layer for each of `parts`, its submodules in the order in which they run.

    By default `parts` are the modules without children, and whole those that also have parameters of their own.
    `example` is a batch of fp32 inputs on any device; counts are divided by its size, dim 0. `module` may be on the
    meta device; it is not changed. Operations between parts (an addition, a relu) count with the part before.
    `element_bytes` are the bytes of one element of an activation.

    Raises ValueError if one of `parts` does not run, or if a parameter belongs to none of them.
    """
    on_meta = {name: tensor.to("meta") for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    on_meta = {name: tensor.detach().requires_grad_(tensor.requires_grad) for name, tensor in on_meta.items()}
    inputs = tuple(each.to("meta") for each in example)
    parts = parts or list(_parts(module))
    counter = _Counter({tensor.untyped_storage()._cdata for tensor in on_meta.values()})
    hooks = [
        hook
        for part in parts
        for hook in (part.register_forward_pre_hook(counter.begin), part.register_forward_hook(counter.end))
    ]
    try:
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(counter.save, lambda saved: saved), counter:
            torch.func.functional_call(module, on_meta, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    network = Network(tuple(counter.layers(len(example[0]), element_bytes / 4)))
    if len(network.layers) < len(parts) or network.parameters < sum(p.numel() for p in module.parameters()):
        raise ValueError(
            f"parts: {len(network.layers)} of {len(parts)} ran, with {network.parameters:,} of the model's parameters: "
            "give modules of this very model, which together have all of them"
        )
    return network


def _parts(module):
    """The modules without children. One with children and parameters of its own, as attention may have, is one part."""
    if any(True for _ in module.parameters(recurse=False)) or not list(module.children()):
        yield module
    else:
        for child in module.children():
            yield from _parts(child)


def _width(packet, args):
    """The columns of one matrix product: for a convolution, the output channels of a group."""
    if packet == _aten.convolution:
        weight, groups = args[1], args[8]
        return weight.shape[0] / groups
    return WARP


class _Counter(TorchDispatchMode):
    """Sums, for the part that began last, what each operation does and what autograd saves of it."""

    def __init__(self, parameters):
        super().__init__()
        self._runs, self._outputs = [], []  # the parts as they ran, and their outputs' element counts
        self._found = defaultdict(float)  # keyed by (index of the run, quantity)
        self._saved = {}  # kept alive, so that no address is reused
        self._parameters = parameters

    def begin(self, part, inputs):
        self._runs.append(part)
        self._outputs.append(0)

    def end(self, part, inputs, output):
        self._outputs[-1] = output.numel() if isinstance(output, torch.Tensor) else 0

    def save(self, tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in self._parameters and storage._cdata not in self._saved:
            self._saved[storage._cdata] = storage
            self._add("kept" if tensor.is_floating_point() else "kept whole numbers", storage.nbytes())
        return tensor

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        packet = function._overloadpacket
        outputs = [
            each
            for each in (output if isinstance(output, tuple | list) else [output])
            if isinstance(each, torch.Tensor)
        ]
        self._add("calls", not function.is_view)
        moved = 4 * sum(each.numel() for each in (*args, *outputs) if isinstance(each, torch.Tensor))
        if packet in flop_registry:
            flops = flop_registry[packet](*args, **(kwargs or {}), out_val=output)
            self._add("flops", flops)
            self._add("idle", flops * (max(1.0, WARP / _width(packet, args)) - 1))
            self._add("products", moved)
        elif not function.is_view:
            forward, backward = _PASSES.get(packet, _OTHERS)
            self._add("forward", forward * moved)
            self._add("backward", backward * moved)
        return output

    def _add(self, what, number):
        self._found[max(0, len(self._runs) - 1), what] += number

    def layers(self, batch, scale):
        seen = set()
        for i, part in enumerate(self._runs):
            each = {
                what: self._found[i, what] / batch
                for what in ("flops", "idle", "products", "forward", "backward", "kept")
            }
            whole_numbers = self._found[i, "kept whole numbers"] / batch
            work = Work(
                flops=each["flops"],
                idle=each["idle"],
                products=scale * each["products"],
                forward=scale * each["forward"],
                backward=scale * each["backward"],
                kept=scale * each["kept"] + whole_numbers,
                calls=int(self._found[i, "calls"]),
            )
            parameters = 0 if part in seen else sum(p.numel() for p in part.parameters())
            seen.add(part)
            yield Layer(type(part).__name__, parameters, 4 * scale * self._outputs[i] / batch, whole=work)
