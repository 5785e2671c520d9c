"""What flows between the layers of a network, forward and back: its types, and the size of its gradients."""

import torch


class Types:
    """Inside a `with Types(net) as types:`, notes the dtype of each layer's output and, later, of
    the gradient that comes back.
    """

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
        """A row for each layer, after the backward pass and the optimizer's step:
        what flowed, and what its weight holds.
        """
        rows = ["layer  output    its gradient  weight   weight's gradient  Adam's state"]
        for name, flowing in reversed(self._flowing.items()):  # the backward pass saw the last layer first
            w = getattr(getattr(self._net, name), "weight", None)
            own = ["–"] * 3 if w is None else [w.dtype, w.grad.dtype, optimizer.state[w]["exp_avg"].dtype]
            rows.append("{:6s} {:9s} {:13s} {:8s} {:18s} {}".format(name, *map(short, (*flowing, *own))))
        return "\n".join(rows)


def short(dtype):
    """The name of a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")


def output_gradients(layers, loss):
    """Run `loss()` backward, and return the sizes of the gradients of all `layers`' outputs that are not zero, in one
    tensor.

    Zero are those of what ReLU or pooling did not let pass, in any precision.
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
    """(powers, % of `sizes` from each power of two to the next)."""
    counts = torch.histc(sizes.float().log2(), bins=high - low, min=low, max=high)
    return list(range(low, high)), (100 * counts / len(sizes)).tolist()


def lost_in_float16(sizes, scale):
    """The shares of `sizes` that float16 makes zero, and infinite, after they are multiplied by `scale`."""
    half = (sizes * scale).half()
    return (half == 0).double().mean().item(), half.isinf().double().mean().item()
