"""The dtypes that flow between a network's layers, forward and back."""


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
