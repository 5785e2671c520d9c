"""Checks of chapter 07: linear layers by columns and by rows, a convolution by input channels, bytes moved."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..parallel.device_group import DeviceGroup
from .wrong import Wrong, expect, is_near, is_whole, judge_in_worker, max_difference


def _run_whole(layer, x, grad_y):
    """The truth: a layer's output, and the gradients of its input, weight and bias."""
    x = x.detach().clone().requires_grad_()
    y = layer(x)
    return y.detach(), *torch.autograd.grad(y, [x, layer.weight, layer.bias], grad_y)


def _expect_tensor(value, shape, what):
    expect(isinstance(value, torch.Tensor), f"{what} is a {type(value).__name__}, not a tensor")
    expect(tuple(value.shape) == tuple(shape), f"{what} has shape {tuple(value.shape)}, and should have {tuple(shape)}")
    expect(value.dtype == torch.float64, f"{what} is {str(value.dtype)[6:]}, though all that was given is float64")
    expect(value.isfinite().all(), f"{what} holds something that is no finite number")
    return value.detach()


def _expect_parts(value, shapes, what):
    """One tensor from each device. A part of another shape is explained by the caller, who knows the likely reasons."""
    expect(isinstance(value, (list, tuple)), f"{what} is a {type(value).__name__}, not a list with one tensor from each device")
    expect(len(value) == len(shapes), f"{what} holds {len(value)} tensors, and there are {len(shapes)} devices")
    return [_expect_tensor(part, shape, f"{what}[{i}]") for i, (part, shape) in enumerate(zip(value, shapes))]


def _expect_equal_parts(parts, truth, dim, what, where, question):
    """Each device's part is its slice of `truth` along `dim`."""
    for i, (part, right) in enumerate(zip(parts, truth.chunk(len(parts), dim))):
        if is_near(part, right):
            continue
        told = f"{where}, {what}[{i}] differs from device {i}'s part of the whole layer's by {max_difference(part, right):.2g}"
        summed = f"{told}: it is {len(parts)} times too large; was it summed over devices that hold the same?"
        expect(not is_near(part, len(parts) * right), summed)
        expect(not any(is_near(part, other) for other in truth.chunk(len(parts), dim)), f"{told}: it is another device's part")
        raise Wrong(f"{told}: {question}")


class _Numbers(TorchDispatchMode):
    """Knows which number of a group each tensor is on, where all are on the CPU, and notes the first fault."""

    def __init__(self):
        super().__init__()
        self.kept, self.fault = {}, None  # {memory: (number, tensor)}; while a tensor is kept, none else has its memory

    def put(self, tensor, number):
        self.kept[tensor.untyped_storage().data_ptr()] = number, tensor

    def find(self, tensor):
        """The tensor's number, or None: made of nothing that was given, it may be anywhere."""
        return self.kept.get(tensor.untyped_storage().data_ptr(), (None,))[0]

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        numbers = sorted({self.find(t) for t in _tensors((args, kwargs)) if t.dim()} - {None})
        if len(numbers) > 1:
            self.fault = self.fault or f"an operation mixes tensors of devices {' and '.join(map(str, numbers))}"
        results = operation(*args, **(kwargs or {}))
        for t in _tensors(results):
            if numbers and self.find(t) is None:
                self.put(t, numbers[0])
        return results


def _tensors(tree):
    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor) and t.numel()]


class _Group(DeviceGroup):
    """A group of CPUs that knows what is on which number, and what each has received.

    It counts from its making on: the count is the check's, so an answer's reset() must not change it.
    """

    def __init__(self, num_devices):
        super().__init__(["cpu"] * num_devices)
        self.numbers, self.arrived = _Numbers(), [[] for _ in self.devices]

    def reset(self):
        if not hasattr(self, "sent_bytes"):
            super().reset()

    def send(self, tensor, source, target):
        copy_there = super().send(tensor, source, target)
        there = self.numbers.find(tensor)
        if there not in (None, source):
            self.numbers.fault = self.numbers.fault or f"what is sent from device {source} is a tensor of device {there}"
        if source != target:
            self.numbers.put(copy_there, target)
            self.arrived[target].append(copy_there.flatten().clone())
        return copy_there


def _expect_places(group, where, on_each, on_number_0=()):
    """The results are where they belong; `on_each` is {name: list, one from each device}."""
    asked = [(f"{name}[{i}]", t, i) for name, parts in on_each.items() for i, t in enumerate(parts)]
    for name, tensor, number in asked + [(name, t, 0) for name, t in dict(on_number_0).items()]:
        found = group.numbers.find(tensor)
        expect(found in (None, number), f"{where}, {name} is on device {found}, and belongs on device {number}")


def _expect_shards_only(group, layer, where):
    """No device has received more of the layer than its shard; its numbers are random, so they are known again."""
    own = torch.cat([p.detach().flatten() for p in layer.parameters()])
    for i, arrived in enumerate(group.arrived):
        num_received = int(torch.isin(own, torch.cat(arrived)).sum()) if i and arrived else 0
        shard = len(own) // len(group)
        expect(num_received <= shard, f"{where}, device {i} received {num_received} of the layer's {len(own)} parameters, and its "
                                      f"shard has {shard}")


def _expect_enough(group, least, where):
    question = "does every device get all that it computes with, and every result, through the group?"
    expect(group.numbers.fault is None, f"{where}, {group.numbers.fault}: {question}")
    told = f"{where}, the devices sent {group.total_bytes:,} bytes through the group, and cannot do with fewer than {least:,}"
    expect(group.total_bytes >= least, f"{told}: {question}")


def _expect_not_too_much(group, least, slack, question, where):
    told = f"{where}, the devices sent {group.total_bytes:,} bytes, where {least:,} are enough"
    expect(group.total_bytes <= least + slack, f"{told}: {question}")


_OWN_INPUT = "is it made from this device's own part of the input, and the whole gradient of the output?"


def _call(answer, num_results, group, layer, *arguments, where):
    """Call the answer; its results, after it is certain that it has left alone what it was given."""
    placed = [(layer.weight, 0), (layer.bias, 0)]  # what is given, each with its device's number
    for a in arguments:
        placed += [(t, i) for i, t in enumerate(a if isinstance(a, list) else [a])]
    given = [t for t, _ in placed]
    names = ["the layer's weight", "the layer's bias", *["a tensor that it was given"] * (len(given) - 2)]
    before = [t.detach().clone() for t in given]
    for t, number in placed:
        group.numbers.put(t, number)
    with group.numbers:
        results = answer(group, layer, *arguments)
    for name, t, old in zip(names, given, before):
        expect(t.shape == old.shape and torch.equal(t.detach(), old), f"{where}, your function changed in place {name}: work on a copy")
    is_right_many = isinstance(results, (tuple, list)) and len(results) == num_results
    got = f"{len(results)} values" if isinstance(results, (tuple, list)) else f"a {type(results).__name__}"
    expect(is_right_many, f"{where}, your function returned {got}, not the {num_results} results in a row")
    return results


# ---- 7.1 ----------------------------------------------------------------------------------------------------------


def check_7_1(column_parallel):
    """`column_parallel(group, linear, x, grad_y)` returns y, grad_xs, weight_grads, bias_grads."""
    judge_in_worker(_judge_columns, column_parallel)
    return "on 1 to 4 devices, output and gradients are the whole layer's, and each device had its shard only."


def _judge_columns(column_parallel):
    torch.manual_seed(71)
    for N, B, num_in, num_out in ((2, 3, 17, 20), (1, 4, 5, 6), (3, 2, 25, 18), (4, 5, 31, 24)):
        where = f"on {N} device{'s' * (N > 1)}, {num_in} → {num_out} features"
        group, linear = _Group(N), nn.Linear(num_in, num_out).double()
        x, grad_y = torch.randn(B, num_in).double(), torch.randn(B, num_out).double()
        right_y, right_x, right_weight, right_bias = _run_whole(linear, x, grad_y)
        y, grad_xs, weight_grads, bias_grads = _call(column_parallel, 4, group, copy.deepcopy(linear), x, grad_y, where=where)

        expect(not isinstance(y, (list, tuple)), f"{where}, y is a {type(y).__name__}: the whole output on number 0, one tensor, is asked")
        y = _expect_tensor(y, right_y.shape, f"{where}, y")
        if not is_near(y, right_y):
            told = f"{where}, y differs from the whole layer's by {max_difference(y, right_y):.2g}"
            expect(not is_near(y, F.linear(x, linear.weight)), f"{told}: it is the product alone, without the bias")
            raise Wrong(f"{told}: do weight, bias and output fall into parts alike, and in the devices' order?")

        shard = (num_out // N, num_in)
        if isinstance(weight_grads, (list, tuple)) and N > 1:
            shapes = {tuple(part.shape) for part in weight_grads if isinstance(part, torch.Tensor)}
            told = f"{where}, a part of weight_grads has the whole weight's shape: a device has its shard only"
            expect((num_out, num_in) not in shapes, told)
        weight_grads = _expect_parts(weight_grads, [shard] * N, f"{where}, weight_grads")
        bias_grads = _expect_parts(bias_grads, [shard[:1]] * N, f"{where}, bias_grads")
        own = "is the gradient that this device was given the one of its own part of the output?"
        _expect_equal_parts(weight_grads, right_weight, 0, "weight_grads", where, own)
        _expect_equal_parts(bias_grads, right_bias, 0, "bias_grads", where, own)

        grad_xs = _expect_parts(grad_xs, [x.shape] * N, f"{where}, grad_xs")
        summands = [g @ w.detach() for g, w in zip(grad_y.chunk(N, 1), linear.weight.chunk(N))]
        _expect_input_gradient(grad_xs, right_x, summands, where)

        shards_and_outputs = (N - 1) * (linear.weight.numel() + num_out + 2 * y.numel()) // N
        _expect_enough(group, (shards_and_outputs + 3 * (N - 1) * x.numel()) * 8, where)
        on_each = {"grad_xs": grad_xs, "weight_grads": weight_grads, "bias_grads": bias_grads}
        _expect_places(group, where, on_each, {"y": y})
        _expect_shards_only(group, linear, where)


def _expect_input_gradient(grad_xs, right, summands, where):
    for i, grad in enumerate(grad_xs):
        if is_near(grad, right):
            continue
        told = f"{where}, grad_xs[{i}] differs from the whole layer's input gradient by {max_difference(grad, right):.2g}"
        expect(not is_near(grad, summands[i]), f"{told}: it is device {i}'s own summand; the input fed the other devices' outputs too")
        expect(not is_near(grad, len(summands) * right), f"{told}: it is {len(summands)} times too large, so something was added up twice")
        expect(not is_near(grad, right / len(summands)), f"{told}: it is a mean over devices, and the formula has a sum")
        raise Wrong(f"{told}: which summands are in it?")


# ---- 7.2 ----------------------------------------------------------------------------------------------------------


def check_7_2(row_parallel):
    """`row_parallel(group, linear, xs, grad_ys)` returns ys, grad_xs, weight_grads, bias_grad."""
    judge_in_worker(_judge_rows, row_parallel)
    return "on 1 to 4 devices, output and gradients are the whole layer's, the bias is in once, and nothing travelled backward."


def _judge_rows(row_parallel):
    torch.manual_seed(72)
    for N, B, num_in, num_out in ((2, 7, 22, 5), (1, 4, 6, 3), (3, 8, 24, 7), (4, 9, 36, 5)):
        where = f"on {N} device{'s' * (N > 1)}, {num_in} → {num_out} features"
        group, linear = _Group(N), nn.Linear(num_in, num_out).double()
        x, grad_y = torch.randn(B, num_in).double(), torch.randn(B, num_out).double()
        right_y, right_x, right_weight, right_bias = _run_whole(linear, x, grad_y)
        xs, grad_ys = [part.clone() for part in x.chunk(N, 1)], [grad_y.clone() for _ in range(N)]
        ys, grad_xs, weight_grads, bias_grad = _call(row_parallel, 4, group, copy.deepcopy(linear), xs, grad_ys, where=where)

        ys = _expect_parts(ys, [right_y.shape] * N, f"{where}, ys")
        bias = linear.bias.detach()
        for i, y in enumerate(ys):
            if not is_near(y, right_y):
                told = f"{where}, ys[{i}] differs from the whole layer's output by {max_difference(y, right_y):.2g}"
                _explain_sum(y, right_y, bias, N, told)
        grad_xs = _expect_parts(grad_xs, [xs[0].shape] * N, f"{where}, grad_xs")
        weight_grads = _expect_parts(weight_grads, [(num_out, num_in // N)] * N, f"{where}, weight_grads")
        _expect_equal_parts(grad_xs, right_x, 1, "grad_xs", where, "which devices' shards does this part of the input meet?")
        _expect_equal_parts(weight_grads, right_weight, 1, "weight_grads", where, _OWN_INPUT)
        _expect_bias_gradient(bias_grad, right_bias, N, where)

        least = (N - 1) * (linear.weight.numel() // N + 2 * right_y.numel()) * 8
        slack = 3 * (N - 1) * num_out * 8  # the bias may be on every device
        _expect_enough(group, least, where)
        _expect_places(group, where, {"ys": ys, "grad_xs": grad_xs, "weight_grads": weight_grads})
        question = "is anything sent in the backward pass, the output twice, or the whole weight to every device?"
        _expect_not_too_much(group, least, slack, question, where)


def _explain_sum(y, right, bias, N, told):
    times = [k for k in (0, *range(2, N + 1)) if is_near(y, right + (k - 1) * bias)]
    expect(times != [0], f"{told}: it is the product alone, without the bias")
    expect(not times, f"{told}: the bias is in it {times[0] if times else ''} times")
    raise Wrong(f"{told}: are the devices' summands added up, each of its own part of the input, and the bias once?")


def _expect_bias_gradient(bias_grad, right, N, where):
    told = f"{where}, bias_grad is a {type(bias_grad).__name__}: the layer has one bias, so one tensor is asked"
    expect(not isinstance(bias_grad, (list, tuple)), told)
    bias_grad = _expect_tensor(bias_grad, right.shape, f"{where}, bias_grad")
    if not is_near(bias_grad, right):
        told = f"{where}, bias_grad differs from the whole layer's by {max_difference(bias_grad, right):.2g}"
        expect(not is_near(bias_grad, N * right), f"{told}: it is {N} times too large, once for each device that holds the same gradient")
        expect(not is_near(bias_grad, right / N), f"{told}: it is a mean over devices that each hold all of it")
        raise Wrong(f"{told}: over which dims of the output's gradient is it a sum?")


# ---- 7.3 ----------------------------------------------------------------------------------------------------------


def check_7_3(conv_by_input_channels):
    """`conv_by_input_channels(group, conv, x, grad_y)` returns y, grad_x, weight_grads, bias_grad."""
    judge_in_worker(_judge_convolution, conv_by_input_channels)
    return "on 1 to 4 devices, with strides and paddings, output and gradients are the whole convolution's."


def _judge_convolution(conv_by_input_channels):
    torch.manual_seed(73)
    cases = (
        (2, 26, 6, {"kernel_size": 3, "padding": 1}),
        (1, 3, 4, {"kernel_size": 2}),
        (3, 24, 5, {"kernel_size": 3, "stride": 2}),
        (4, 24, 8, {"kernel_size": (3, 4), "stride": (1, 2), "padding": (2, 1)}),
    )
    for N, num_in, num_out, settings in cases:
        where = f"on {N} device{'s' * (N > 1)}, {num_in} → {num_out} channels, {', '.join(f'{k} {v}' for k, v in settings.items())}"
        group, conv = _Group(N), nn.Conv2d(num_in, num_out, **settings).double()
        x = torch.randn(2, num_in, 5, 6).double()
        grad_y = torch.randn(conv(x).shape).double()
        right_y, right_x, right_weight, right_bias = _run_whole(conv, x, grad_y)
        y, grad_x, weight_grads, bias_grad = _call(conv_by_input_channels, 4, group, copy.deepcopy(conv), x, grad_y, where=where)

        for name, value in (("y", y), ("grad_x", grad_x)):
            told = f"{where}, {name} is a {type(value).__name__}: one whole tensor, on number 0, is asked"
            expect(not isinstance(value, (list, tuple)), told)
        y, grad_x = _expect_tensor(y, right_y.shape, f"{where}, y"), _expect_tensor(grad_x, x.shape, f"{where}, grad_x")
        if not is_near(y, right_y):
            told = f"{where}, y differs from the whole convolution's by {max_difference(y, right_y):.2g}"
            _explain_sum(y, right_y, conv.bias.detach().view(-1, 1, 1), N, told)
        if not is_near(grad_x, right_x):
            told = f"{where}, grad_x differs from the whole convolution's by {max_difference(grad_x, right_x):.2g}"
            expect(not is_near(grad_x, N * right_x), f"{told}: it is {N} times too large; whose gradient was added up?")
            raise Wrong(f"{told}: does each device have the gradient of its own channels, and are they joined in order?")
        shard = (num_out, num_in // N, *conv.kernel_size)
        weight_grads = _expect_parts(weight_grads, [shard] * N, f"{where}, weight_grads")
        _expect_equal_parts(weight_grads, right_weight, 1, "weight_grads", where, _OWN_INPUT)
        _expect_bias_gradient(bias_grad, right_bias, N, where)

        least = ((N - 1) * (2 * x.numel() + conv.weight.numel()) // N + 2 * (N - 1) * y.numel()) * 8
        slack = (N - 1) * (y.numel() + 3 * num_out) * 8  # y may end on every device, and the bias be on every device
        _expect_enough(group, least, where)
        _expect_places(group, where, {"weight_grads": weight_grads}, {"y": y, "grad_x": grad_x})
        question = "did a device receive weights, channels or summands that it does not compute with?"
        _expect_not_too_much(group, least, slack, question, where)


# ---- 7.4 ----------------------------------------------------------------------------------------------------------


def check_7_4(bytes_moved):
    """`bytes_moved(conv1, conv2, x_shape, num_devices)` returns (by_channels, by_data) in bytes."""
    judge_in_worker(_judge_bytes, bytes_moved)
    return "five pairs of convolutions on 1 to 8 devices: each agrees to the byte with what was counted when it was run."


def _judge_bytes(bytes_moved):
    torch.manual_seed(74)
    cases = (  # six devices first: with two, four or five, different mistakes look alike
        (6, (3, 3, 12, 10), nn.Conv2d(3, 12, 5, stride=2, padding=1), nn.Conv2d(12, 7, (2, 3))),
        (3, (5, 2, 11, 11), nn.Conv2d(2, 9, (3, 1), stride=(2, 3), bias=False), nn.Conv2d(9, 4, 2, padding=(1, 0))),
        (1, (2, 2, 6, 6), nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 3)),
        (2, (3, 4, 9, 7), nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(6, 5, 3, padding=1)),
        (8, (1, 6, 8, 8), nn.Conv2d(6, 16, 3), nn.Conv2d(16, 2, 1, bias=False)),
    )
    for N, x_shape, conv1, conv2 in cases:
        where = f"for {conv1} and {conv2} on {N} devices, x {x_shape}"
        answer = bytes_moved(copy.deepcopy(conv1), copy.deepcopy(conv2), x_shape, N)
        is_pair = isinstance(answer, (tuple, list)) and len(answer) == 2 and all(map(is_whole, answer))
        expect(is_pair, f"{where}, the answer is {answer!r}, not two whole numbers")
        with torch.no_grad():
            num_in, num_out = torch.Size(x_shape).numel(), conv2(conv1(torch.zeros(x_shape))).numel()
        num_weights = conv1.weight.numel() + conv2.weight.numel()
        parameters = [*conv1.parameters(), *conv2.parameters()]
        truth = _count([torch.zeros(num_out), torch.zeros(num_in)], N), _count(parameters, N)
        expect(truth[0] == truth[1] or tuple(answer) != truth[::-1], f"{where}, both numbers are right, and they are exchanged")
        for name, given, right in zip(("by_channels", "by_data"), answer, truth):
            if given != right:
                told = f"{where}, {name} is {given:,}, and {right:,} bytes were counted"
                _explain_bytes(told, name, given, right, N, num_in, num_out, num_weights)


def _count(tensors, N):
    """The bytes that a group counts when tensors of these shapes, one on each device, are all-reduced."""
    group = DeviceGroup(["cpu"] * N)
    for tensor in tensors:
        group.all_reduce([torch.zeros(tensor.shape) for _ in range(N)])
    return group.total_bytes


def _explain_bytes(told, name, given, right, N, num_in, num_out, num_weights):
    expect(right > 0, f"{told}: a device alone sends nothing")
    expect(4 * given != right, f"{told}: is that the number of numbers?")
    expect(given * 2 * (N - 1) != right, f"{told}: that is the size of what is all-reduced, and an all-reduce moves more")
    expect(abs(given * N - right) >= N, f"{told}: that is one device's share")
    expect(given * (N - 1) != right * N, f"{told}: how many devices have something to send to another?")
    expect(given * 2 != right, f"{told}: an all-reduce adds up and hands the sum back; is each of the two counted?")
    expect(given != right * 2, f"{told}: how many bytes has a float32?")
    if name == "by_channels":
        each = 2 * (N - 1) * 4
        expect(given != each * num_out, f"{told}: the forward pass is there; what does the backward pass add up?")
        expect(given != each * num_in, f"{told}: the backward pass is there; what does the forward pass add up?")
        raise Wrong(f"{told}: one all-reduce in each direction, of which two tensors, and which shapes?")
    expect(given != 2 * (N - 1) * 4 * num_weights, f"{told}: are the biases' gradients in it?")
    raise Wrong(f"{told}: how many parameters have the two layers, and what moves in an all-reduce?")
