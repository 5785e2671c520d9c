"""A model's numbers counted from the module itself: it runs once on the meta device, where nothing has values."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from .models import Layer, Network, Work

# How often a module without products reads or writes its elements (the input's, the output's): forward, backward.
_PASSES = {nn.modules.batchnorm._BatchNorm: (3, 5), nn.Flatten: (0, 0), nn.Identity: (0, 0)}
_OTHERS = (2, 3)


def count(module, *example, element_bytes=4):
    """The Network of `module`, a Layer for each of its modules without children, in the order in which they run.

    `example` is a batch of inputs, of any device; what is counted is divided by its size, its first dimension. `module` may
    itself be on the meta device; it is not changed. Functions called between modules (an addition, a relu) are not seen.
    """
    batch, layers, seen = len(example[0]), [], set()
    on_meta = {name: tensor.to("meta") for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    leaves = [each for each in module.modules() if not list(each.children())]
    counter = FlopCounterMode(display=False)
    before = {}

    def begin(leaf, inputs):
        before[leaf] = counter.get_total_flops()

    def end(leaf, inputs, output):
        flops = counter.get_total_flops() - before.pop(leaf)
        layers.append(_layer(leaf, flops / batch, inputs[0].numel() / batch, output.numel() / batch, element_bytes, leaf in seen))
        seen.add(leaf)

    hooks = [hook for leaf in leaves for hook in (leaf.register_forward_pre_hook(begin), leaf.register_forward_hook(end))]
    try:
        with counter, torch.no_grad():
            torch.func.functional_call(module, on_meta, tuple(each.to("meta") for each in example))
    finally:
        for hook in hooks:
            hook.remove()
    return Network(tuple(layers))


def _layer(leaf, flops, num_in, num_out, element_bytes, is_again):
    parameters = 0 if is_again else sum(p.numel() for p in leaf.parameters(recurse=False))
    if flops:
        work = Work(flops=flops, products=element_bytes * (num_in + num_out), kept=element_bytes * num_in)
    else:
        passes = next((each for kind, each in _PASSES.items() if isinstance(leaf, kind)), _OTHERS)
        kept = 0 if passes == (0, 0) or (isinstance(leaf, nn.ReLU) and leaf.inplace) else num_in
        forward, backward = (each * element_bytes * (num_in + num_out) / 2 for each in passes)
        work = Work(forward=forward, backward=backward, kept=element_bytes * kept)
    return Layer(type(leaf).__name__, parameters, element_bytes * num_out, whole=work)
