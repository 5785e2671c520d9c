"""A stand-in for Horovod's PyTorch module, among a check's workers; `import horovod.torch` imports it."""

import contextlib
import functools
import itertools
import sys
import types

import cloudpickle
import torch
import torch.distributed as dist

from ...checks.expect import Wrong

_AVERAGE, _SUM, _MIN, _MAX, _PRODUCT = 0, 1, 3, 4, 5  # Horovod's values
_COMBINE = {_AVERAGE: torch.add, _SUM: torch.add, _MIN: torch.minimum, _MAX: torch.maximum, _PRODUCT: torch.mul}
_BEFORE_INIT = "init", "is_initialized", "shutdown"


class Compression:
    """Horovod's compression options: the dtype in which gradients are sent, None for their own."""

    none, fp16 = None, torch.float16


class Horovod:
    """Make `import horovod.torch as hvd` import a stand-in that acts as Horovod 0.28.1 does in a training loop.

    `calls` has the names of the functions that this rank called, in order. A node has `per_node` ranks. The worker's
    process group is destroyed, because workers of Horovod have none. The ranks meet in each collective and at the end
    of the block; if they call different ones, all of them raise the same Wrong, and there is no deadlock.
    """

    def __init__(self, per_node):
        self.calls, self.is_on, self.per_node = [], False, per_node
        self._number = itertools.count()

    def __enter__(self):
        self._store = dist.distributed_c10d._get_default_store()
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        dist.destroy_process_group()
        package, module, functions = types.ModuleType("horovod"), types.ModuleType("horovod.torch"), _Functions(self)
        package.__path__, package.torch = [], module
        module.__getattr__ = _missing
        vars(module).update(Compression=Compression, Average=_AVERAGE, Sum=_SUM, Min=_MIN, Max=_MAX, Product=_PRODUCT)
        for name in vars(_Functions):
            if not name.startswith("_"):
                setattr(module, name, self._heard(getattr(functions, name)))
        modules = {"horovod": package, "horovod.torch": module}
        self._before = {name: sys.modules.get(name) for name in modules}
        sys.modules.update(modules)
        return self

    def __exit__(self, kind, *error):
        for name, module in self._before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module
        if kind is None:
            self.exchange("the end of your function")

    def exchange(self, what, value=None, shapes=""):
        """Return the values of all ranks, in rank order; raise Wrong if `what` or `shapes` differ between ranks."""
        number = next(self._number)
        self._store.set(f"Horovod's meeting {number}, rank {self.rank}", cloudpickle.dumps((what, shapes, value)))
        everyone = [
            cloudpickle.loads(self._store.get(f"Horovod's meeting {number}, rank {rank}")) for rank in range(self.size)
        ]
        first, first_shapes, _ = everyone[0]
        for rank, (other, other_shapes, _) in enumerate(everyone):
            if other != first:
                raise Wrong(
                    f"rank 0 came to {first}, and rank {rank} to {other}: each would wait for the other. Every rank "
                    "must call the same of Horovod's functions, in the same order"
                )
            if other_shapes != first_shapes:
                raise Wrong(f"all ranks came to {first}, rank 0 with {first_shapes}, rank {rank} with {other_shapes}")
        return [value for *_, value in everyone]

    def exchange_tensors(self, what, tensors):
        """Return the tensors of all ranks, a list for each. Raises ValueError if a tensor is not contiguous."""
        if not all(tensor.is_contiguous() for tensor in tensors):
            raise ValueError("Horovod sends contiguous tensors only")
        shapes = " and ".join(
            f"{list(tensor.shape)} in {str(tensor.dtype).removeprefix('torch.')}" for tensor in tensors
        )
        copies = [tensor.detach().clone() for tensor in tensors]  # pickling a view would send its whole storage
        return self.exchange(what, copies, shapes)

    def reduce(self, what, tensors, op, compression=None, factor=1.0):
        """Return new tensors: those of all ranks, combined and multiplied by `factor`."""
        sent = [tensor if compression is None else tensor.to(compression) for tensor in tensors]
        combined = [functools.reduce(_COMBINE[op], each) for each in zip(*self.exchange_tensors(what, sent))]
        factor = factor / self.size if op == _AVERAGE else factor
        return [(result * factor).to(tensor.dtype) for result, tensor in zip(combined, tensors)]

    def fill(self, what, tensors, root):
        """Copy the tensors of rank `root` into those of all ranks. Raises ValueError if there is no such rank."""
        if root not in range(self.size):
            raise ValueError(f"there is no rank {root!r} to broadcast from: there are {self.size}")
        for tensor, other in zip(tensors, self.exchange_tensors(f"{what} from rank {root}", tensors)[root]):
            tensor.detach().copy_(other)

    def _heard(self, function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            self.calls.append(function.__name__)
            if not self.is_on and function.__name__ not in _BEFORE_INIT:
                raise ValueError("Horovod has not been initialized; use hvd.init().")  # Horovod's message
            return function(*args, **kwargs)

        call.__code__ = call.__code__.replace(co_name=function.__name__)  # the name in reports of waiting ranks
        return call


class _Functions:
    """The functions of the module, with the arguments of Horovod's own."""

    def __init__(self, horovod):
        # _under_way: {handle: (tensor to fill, result)}
        self._horovod, self._under_way, self._number = horovod, {}, itertools.count()

    def init(self, comm=None, process_sets=None):
        self._horovod.is_on = True

    def shutdown(self):
        self._horovod.is_on = False

    def is_initialized(self):
        return self._horovod.is_on

    def rank(self):
        return self._horovod.rank

    def size(self):
        return self._horovod.size

    def local_rank(self):
        return self._horovod.rank % self._horovod.per_node

    def local_size(self):
        return min(self._horovod.size, self._horovod.per_node)

    def cross_rank(self):
        return self._horovod.rank // self._horovod.per_node

    def cross_size(self):
        return -(-self._horovod.size // self._horovod.per_node)

    def allreduce(
        self,
        tensor,
        average=None,
        name=None,
        compression=Compression.none,
        op=None,
        prescale_factor=1.0,
        postscale_factor=1.0,
    ):
        options = _operation(average, op), compression, prescale_factor * postscale_factor
        return _Differentiable.apply(
            tensor, lambda x: self._horovod.reduce(_named("allreduce", name), [x], *options)[0]
        )

    def allreduce_(self, tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0):
        options = _operation(average, op), None, prescale_factor * postscale_factor
        (result,) = self._horovod.reduce(_named("allreduce_", name), [tensor], *options)
        tensor.detach().copy_(result)
        return tensor

    def allreduce_async(self, tensor, average=None, name=None, op=None):
        return self.allreduce_async_(tensor.detach().clone(), average, name, op)

    def allreduce_async_(self, tensor, average=None, name=None, op=None):
        (result,) = self._horovod.reduce(_named("allreduce_async", name), [tensor], _operation(average, op))
        return self._begin(tensor, result)

    def grouped_allreduce(self, tensors, average=None, name=None, compression=Compression.none, op=None):
        return self._horovod.reduce(
            _named("grouped_allreduce", name), list(tensors), _operation(average, op), compression
        )

    def grouped_allreduce_(self, tensors, average=None, name=None, op=None):
        for tensor, result in zip(tensors, self.grouped_allreduce(tensors, average, name, op=op)):
            tensor.detach().copy_(result)
        return tensors

    def broadcast(self, tensor, root_rank, name=None):
        result = tensor.detach().clone()
        self._horovod.fill(_named("broadcast", name), [result], root_rank)
        return result

    def broadcast_(self, tensor, root_rank, name=None):
        tensor.detach().copy_(self.broadcast(tensor, root_rank, name))
        return tensor

    def broadcast_async_(self, tensor, root_rank, name=None):
        return self._begin(tensor, self.broadcast(tensor, root_rank, name))

    def allgather(self, tensor, name=None):
        (parts,) = zip(*self._horovod.exchange(_named("allgather", name), [tensor.detach().clone()]))
        return torch.cat(parts)

    def broadcast_object(self, obj, root_rank=0, name=None):
        return self._horovod.exchange(_named(f"broadcast_object from rank {root_rank}", name), obj)[root_rank]

    def allgather_object(self, obj, name=None):
        return self._horovod.exchange(_named("allgather_object", name), obj)

    def barrier(self):
        self._horovod.exchange("barrier")

    def poll(self, handle):
        return handle in self._under_way

    def synchronize(self, handle):
        tensor, result = self._under_way.pop(handle)
        tensor.detach().copy_(result)
        return tensor

    def broadcast_parameters(self, params, root_rank):
        if not isinstance(params, (dict, list)):
            raise ValueError(f"broadcast_parameters takes a dict or a list, and was given a {type(params).__name__}")
        items = [params[name] for name in sorted(params)] if isinstance(params, dict) else params
        tensors = [item[1] if isinstance(item, tuple) else item for item in items]
        self._horovod.fill("broadcast_parameters", tensors, root_rank)

    def broadcast_optimizer_state(self, optimizer, root_rank, model=None):
        # As in Horovod, a step with zero gradients creates the state.
        if not optimizer.state:
            for p in _parameters(optimizer):
                p.grad = torch.zeros_like(p)
            (super(_Averaging, optimizer) if isinstance(optimizer, _Averaging) else optimizer).step()
        states = [optimizer.state[p] for p in _parameters(optimizer) if optimizer.state.get(p)]
        if not states:
            return  # Horovod then sends no options either
        places = [(state, key) for state in states for key in state]
        tensors = [state[key] for state, key in places if isinstance(state[key], torch.Tensor)]
        self._horovod.fill("broadcast_optimizer_state", tensors, root_rank)
        plain = [(state, key) for state, key in places if not isinstance(state[key], torch.Tensor)]
        plain += [(group, key) for group in optimizer.param_groups for key in group if key != "params"]
        theirs = self._horovod.exchange("broadcast_optimizer_state", [place[key] for place, key in plain])[root_rank]
        for (place, key), value in zip(plain, theirs):
            place[key] = value

    def DistributedOptimizer(
        self, optimizer, named_parameters=None, compression=Compression.none, backward_passes_per_step=1, op=_AVERAGE,
        gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False,
    ):  # fmt: skip
        if named_parameters is not None:
            named = list(named_parameters)
            if not all(isinstance(item, tuple) for item in named):
                raise ValueError("named_parameters has pairs of a name and a parameter")
            if {id(p) for group in optimizer.param_groups for p in group["params"]} - {id(p) for _, p in named}:
                raise ValueError("named_parameters lacks a parameter of the optimizer")
        own = type(optimizer)
        averaging = type(own.__name__, (_Averaging, own), {})(optimizer.param_groups)  # with empty state, as in Horovod
        averaging._begin(self._horovod, op, compression, backward_passes_per_step)
        return averaging

    def _begin(self, tensor, result):
        self._under_way[handle := next(self._number)] = tensor, result
        return handle


class _Differentiable(torch.autograd.Function):
    """Apply a function to a tensor, and in the backward pass to its gradient."""

    @staticmethod
    def forward(ctx, tensor, function):
        ctx.function = function
        return function(tensor)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.function(gradient), None


class _Averaging:
    """The class that DistributedOptimizer puts before the optimizer's own class.

    `step` averages the gradients, except in `skip_synchronize`.
    """

    def _begin(self, horovod, op, compression, passes):
        self._horovod, self._op, self._compression = horovod, op, compression
        # _num_passes: {parameter: backward passes since the last step}
        self._passes, self._num_passes, self._is_skipping = passes, {}, False
        for p in _parameters(self) if horovod.size > 1 else ():
            p.register_post_accumulate_grad_hook(self._count)

    def _count(self, p):
        self._num_passes[p] = self._num_passes.get(p, 0) + 1
        if self._num_passes[p] > self._passes:
            raise AssertionError(
                "a gradient was computed again before step() of the optimizer that DistributedOptimizer returned; "
                "backward_passes_per_step says how often it may be"
            )

    def synchronize(self):
        parameters = _parameters(self)
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        if self._horovod.size > 1:
            gradients = [p.grad for p in parameters]
            results = self._horovod.reduce("the step of a DistributedOptimizer", gradients, self._op, self._compression)
            for gradient, result in zip(gradients, results):
                gradient.copy_(result)
        self._num_passes.clear()

    @contextlib.contextmanager
    def skip_synchronize(self):
        self._is_skipping = True
        try:
            yield
        finally:
            self._is_skipping = False

    def step(self, closure=None):
        if not self._is_skipping:
            self.synchronize()
        return super().step(closure)

    def zero_grad(self):
        if self._num_passes:
            raise AssertionError("zero_grad() was called after backward() and before step() or synchronize()")
        super().zero_grad()


def _parameters(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def _missing(name):
    raise AttributeError(f"the check's stand-in for Horovod has no {name}: the exercise goes without it")


def _operation(average, op):
    if op is not None and average is not None:
        raise ValueError("give op, and not average beside it")
    return op if op is not None else _AVERAGE if average in (None, True) else _SUM


def _named(what, name):
    return what if name is None else f"{what} {name!r}"
