"""What flows between a network's layers, forward and back: dtypes, and the sizes of gradients."""

import torch


class Types:
    """Records, in `with Types(net) as types:`, the dtypes of each layer's output and of that output's gradient."""

    def __init__(self, net):
        self._net, self._flowing = net, {}

    def __enter__(self):
        self._hooks = [layer.register_forward_hook(self._note(name)) for name, layer in self._net.named_children()]
        return self

    def __exit__(self, *exception):
        for hook in self._hooks:
            hook.remove()

    def _note(self, name):
        def hook(layer, inputs, output):
            output.register_hook(lambda gradient: self._flowing.update({name: (output.dtype, gradient.dtype)}))

        return hook

    def table(self, optimizer):
        """Return a row per layer: dtypes of output, its gradient, weight, weight's gradient and Adam's state.

        Call it after the backward pass and the optimizer's step.
        """
        rows = ["layer  output    its gradient  weight   weight's gradient  Adam's state"]
        for name, flowing in reversed(self._flowing.items()):  # the backward pass recorded the last layer first
            w = getattr(getattr(self._net, name), "weight", None)
            own = ["–"] * 3 if w is None else [w.dtype, w.grad.dtype, optimizer.state[w]["exp_avg"].dtype]
            rows.append("{:6s} {:9s} {:13s} {:8s} {:18s} {}".format(name, *map(short, (*flowing, *own))))
        return "\n".join(rows)


def short(dtype):
    """Return a dtype's name without its "torch." prefix."""
    return str(dtype).removeprefix("torch.")


def output_gradients(layers, loss):
    """Run `loss()` backward; return the absolute non-zero gradients of all `layers`' outputs in one tensor.

    Zeros come from ReLU and pooling, in any precision.
    """
    gradients = []

    def hook(layer, inputs, output):
        output.register_hook(lambda gradient: gradients.append(gradient.abs().flatten().cpu()))

    hooks = [layer.register_forward_hook(hook) for layer in layers]
    loss().backward()
    for one in hooks:
        one.remove()
    every = torch.cat(gradients)
    return every[every > 0]


def by_power_of_two(sizes, low=-60, high=0):
    """Return (powers, % of `sizes` between each power of two and the next)."""
    counts = torch.histc(sizes.float().log2(), bins=high - low, min=low, max=high)
    return list(range(low, high)), (100 * counts / len(sizes)).tolist()


def lost_in_float16(sizes, scale):
    """Return the shares of `sizes` that, times `scale`, become zero, subnormal and infinite in float16."""
    half = (sizes * scale).half()
    subnormal = (half > 0) & (half < torch.finfo(torch.float16).smallest_normal)
    return tuple(each.double().mean().item() for each in (half == 0, subnormal, half.isinf()))
