"""Which all-gather is on its way while which layer computes: the order of one step, as Python asks for it."""

import functools

from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode


class _Order(TorchDispatchMode):
    """Notes (event, unit) in order: "gather" when one is started, "arrived" when its numbers go to their places."""

    def __init__(self, num_units):
        super().__init__()
        self.events = []
        self._to_come = [*range(num_units), *reversed(range(num_units))]  # forward, then backward
        self._under_way = []

    def note(self, event, unit):
        self.events.append((event, unit))

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # its local tensors' operations will arrive here
        if function.namespace == "c10d" and "gather" in function.__name__:
            self._under_way.append(self._to_come.pop(0))
            self.note("gather", self._under_way[-1])
        elif function.__name__.startswith("split_with_sizes_copy") and self._under_way:
            self.note("arrived", self._under_way.pop(0))
        elif function.namespace == "c10d" and "reduce_scatter" in function.__name__:
            backward = [unit for event, unit in self.events if event == "backward"]
            self.note("backward ends", backward[-1])
        return function(*args, **(kwargs or {}))


def watch_gathers(model, x):
    """Return the events of one step of `model`, a sharded nn.Sequential whose layers are units: [(event, unit)].

    The events are "gather", "arrived", "forward", "forward ends", "backward" and "backward ends", in the order in which
    Python comes to them. On a GPU, where messages have a stream of their own, more may overlap. Every rank must call
    it.
    """
    order, hooks = _Order(len(model)), []

    def begin_backward(unit, gradient):
        order.note("backward", unit)

    def after_forward(layer, args, output, unit):
        order.note("forward ends", unit)
        output.register_hook(functools.partial(begin_backward, unit))  # after FSDP's own hook, which has waited

    for unit, layer in enumerate(model):
        hooks.append(layer.register_forward_pre_hook(lambda *_, unit=unit: order.note("forward", unit)))
        hooks.append(layer.register_forward_hook(functools.partial(after_forward, unit=unit)))
    with order:
        model(x).square().sum().backward()
    for hook in hooks:
        hook.remove()
    return order.events


def spans(events):
    """Return ([(begin, end, unit)] of gathers, [(begin, end, unit, pass)] of computing) in steps of a sketch's clock.

    A pass of a layer takes 2; a gather for which the layer has to wait takes 1.
    """
    now, started, gathers, computing = 0, {}, [], []
    for event, unit in events:
        if event == "gather":
            started[unit] = now
        elif event == "arrived":
            now += started[unit] == now
            gathers.append((started[unit], now, unit))
        elif event.endswith(" ends"):
            computing.append((now, now + 2, unit, event.removesuffix(" ends")))
            now += 2
    return gathers, computing


def beside(events, which):
    """Return [(unit that computes, unit whose gather is on its way meanwhile)] in the pass `which`."""
    gathers, computing = spans(events)
    return [
        (unit, other)
        for begin, end, unit, name in computing
        for start, arrived, other in gathers
        if name == which and start <= begin and end <= arrived
    ]
