"""Checks of chapter 07: a linear layer by rows, missing sums, a fused layer by heads, a convolution, bytes, a loss."""

import contextlib
import warnings

import torch
import torch.nn.functional as F
from torch import nn

from ...checks.expect import (
    EQUAL,
    Wrong,
    case,
    expect,
    expect_finite,
    expect_row,
    expect_tensor,
    expect_whole,
    explain,
    short,
    unchanged,
)
from ...checks.judge import run
from ...parallel.device_group import DeviceGroup
from .places import PlacedGroup, try_with_group

_SINGLE, _STRIDED, _KEPT = "in float32", "tensors that are transposed in memory", "gradients kept from an earlier step"


def _random(*shape, odd=""):
    x = torch.randn(shape[::-1]).permute(*reversed(range(len(shape)))) if odd == _STRIDED else torch.randn(shape)
    return x if odd == _SINGLE else x.double()


def _layer(kind, num_in, num_out, odd="", **settings):
    layer = kind(num_in, num_out, **settings).to(torch.float32 if odd == _SINGLE else torch.float64)
    for p in layer.parameters():
        p.grad = torch.randn_like(p) if odd == _KEPT else None
    return layer


def _close(odd):
    return 1e-5 if odd == _SINGLE else EQUAL


def _on(num_devices, layer, odd):
    return case(f"on {num_devices} device{'s' * (num_devices > 1)}, {layer}{odd and f', {odd}'}")


def _truth(layer, x, grad_y):
    """Return the whole layer's output, and the gradients of its input, weight and bias."""
    x = x.detach().clone().requires_grad_()
    y = layer(x)
    return y.detach(), *torch.autograd.grad(y, [x, layer.weight, layer.bias], grad_y)


def _call(answer, group, names, **given):
    """Call the answer and return its results, one for each of `names`.

    `given` are the layer and then tensors: a single one is on device 0, a list has one part per device.
    """
    layer, *tensors = given.values()
    for p in layer.parameters():
        group.places.put(p, 0)
    for value in tensors:
        for number, tensor in enumerate(value if isinstance(value, list) else [value]):
            group.places.put(tensor, number)
    with unchanged(**given), group.places:
        results = answer(group, *given.values())
    return expect_row(results, len(names.split()), "what came back", of=names.replace(" ", ", "))


def _expect_kept(answer, num_devices, **given):
    """Expect that an input that requires gradients still does afterwards.

    No task asks for this case, so errors and results are ignored.
    """
    _, x, _ = given.values()
    for tensor in x if isinstance(x, list) else [x]:
        tensor.requires_grad_()
    with case("where the input requires gradients"), unchanged(**given, allow=("grad",)):
        with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
            answer(PlacedGroup(num_devices), *given.values())


def _judge(name, got, truth, suspects, otherwise, close):
    with case(name):
        explain(expect_tensor(got, like=truth, what="it"), truth, suspects, otherwise=otherwise, close=close)


def _judge_row(name, row, truths, otherwise, close, suspects=None):
    """Judge `row`, one tensor from each device, and return it as a list.

    `suspects(i)` are the suspects for device i.
    """
    N, row = len(truths), expect_row(row, len(truths), name, of="one tensor from each device")
    for i, (got, truth) in enumerate(zip(row, truths)):
        summed = {f"it is {N} times too large; was it summed over devices that hold the same?": N * truth}
        usual = summed | {f"it is device {j}'s part": other for j, other in enumerate(truths)}
        _judge(f"{name}[{i}]", got, truth, suspects(i) if suspects else usual, otherwise, close)
    return row


def _judge_bias_gradient(got, truth, N, close):
    suspects = {
        f"it is {N} times too large, once for each device that holds the same gradient": N * truth,
        "it is a mean over devices that each hold all of it": truth / N,
    }
    _judge("bias_grad", got, truth, suspects, "over which dims of the output's gradient is it a sum?", close)


def _sum_suspects(truth, bias, N):
    more = {f"the bias is in it {times} times": truth + (times - 1) * bias for times in range(2, N + 1)}
    return {"it is the product alone, without the bias": truth - bias, **more}


_SUMMANDS = "are the devices' summands added up, each of its own part of the input, and the bias once?"
_OWN_INPUT = "is it made from this device's own part of the input, and the whole gradient of the output?"


# ---- 7.1 ----------------------------------------------------------------------------------------------------------

_ROWS = ((2, 7, 22, 5, ""), (1, 4, 6, 3, ""), (3, 8, 24, 7, _KEPT), (4, 9, 36, 5, _STRIDED), (5, 6, 20, 4, _SINGLE))


def check_7_1(row_parallel):
    """`row_parallel(group, linear, xs, grad_ys)` returns ys, grad_xs, weight_grads, bias_grad."""
    run(_judge_rows, row_parallel)
    return (
        "on 1 to 5 devices, output and gradients are the whole layer's, the bias is in once, and nothing travelled "
        "backward."
    )


def _judge_rows(row_parallel):
    torch.manual_seed(71)
    for N, B, num_in, num_out, odd in _ROWS:
        linear = _layer(nn.Linear, num_in, num_out, odd)
        x = _random(B, num_in, odd=odd)
        grad_y = _random(B, num_out, odd=odd)
        with _on(N, f"{num_in} → {num_out} features", odd):
            _judge_rows_of(row_parallel, PlacedGroup(N), linear, x, grad_y, _close(odd))
    xs, grad_ys = [_random(5, 3), _random(5, 3)], [_random(5, 4), _random(5, 4)]
    _expect_kept(row_parallel, 2, linear=_layer(nn.Linear, 6, 4), xs=xs, grad_ys=grad_ys)

    def on_gpus(group, new):
        xs, grad_ys = (
            [torch.ones(4, width, **new | {"device": device}) for device in group.devices] for width in (2, 5)
        )
        row_parallel(group, nn.Linear(6, 5, **new), xs, grad_ys)

    try_with_group(on_gpus)


def _judge_rows_of(row_parallel, group, linear, x, grad_y, close):
    N, (right_y, right_x, right_weight, right_bias) = len(group), _truth(linear, x, grad_y)
    # Each part has its own memory, with the strides of x.
    xs = [torch.empty_like(part).copy_(part) for part in x.chunk(N, 1)]
    grad_ys = [torch.empty_like(grad_y).copy_(grad_y) for _ in range(N)]
    group.places.trace(*grad_ys)
    names = "ys grad_xs weight_grads bias_grad"
    ys, grad_xs, weight_grads, bias_grad = _call(row_parallel, group, names, linear=linear, xs=xs, grad_ys=grad_ys)
    ys = _judge_row(
        "ys", ys, [right_y] * N, _SUMMANDS, close, lambda i: _sum_suspects(right_y, linear.bias.detach(), N)
    )
    question = "is it made from the whole gradient of the output, and from this device's shard alone?"
    grad_xs = _judge_row("grad_xs", grad_xs, right_x.chunk(N, 1), question, close)
    weight_grads = _judge_row("weight_grads", weight_grads, right_weight.chunk(N, 1), _OWN_INPUT, close)
    _judge_bias_gradient(bias_grad, right_bias, N, close)
    least = (N - 1) * (linear.weight.numel() // N + 2 * right_y.numel())
    group.expect_through(least * x.itemsize)
    group.expect_at(ys=ys, grad_xs=grad_xs, weight_grads=weight_grads)
    for source, target in group.sent_traced:
        raise Wrong(
            f"something that comes of grad_ys was sent from device {source} to device {target}: which device lacks "
            "what in the backward pass?"
        )
    most = least + (N - 1) * linear.bias.numel()  # the bias may be sent to every device
    expect(
        group.total_bytes <= most * x.itemsize,
        f"the devices sent {group.total_bytes:,} bytes, and fewer are enough: is the "
        "output sent twice, or more of the layer or of the input than a device computes with?",
    )


# ---- 7.2 ----------------------------------------------------------------------------------------------------------

_BOTH = ["forward", "backward"]
_SPLITS = (  # devices, what the sums of the passes reach: every device, or those named; peculiarity; a question
    (4, {}, "", ""),
    (3, {"backward": ()}, "", "which result of the backward pass is a sum over devices, and what should it equal?"),
    (2, {"forward": ()}, "", "which result of the forward pass is a sum over devices, and what should it equal?"),
    (4, {"forward": (), "backward": ()}, "", "can more than one be missing?"),
    (3, {}, "with numbers of about a millionth", ""),
    (4, {"backward": (0,)}, "where the sum reached device 0 only", "whose copy did you compare?"),
    (3, {"forward": (0,)}, "where the sum reached device 0 only", "whose copy did you compare?"),
    (4, {"forward": (3,), "backward": (3,)}, "where the sums reached device 3 only", "whose copy did you compare?"),
    (2, {"backward": ()}, "whose devices have equal shards",
     "all devices hold the same numbers, and they are wrong: what did you compare them with?"),
    (2, {"forward": ()}, "whose devices have equal shards",
     "all devices hold the same numbers, and they are wrong: what did you compare them with?"),
    (3, {"backward": ()}, "with numbers of about a millionth", "how large a difference is too large for such numbers?"),
    (1, {"forward": (), "backward": ()}, "", ""),
)  # fmt: skip


def check_7_2(missing_sums):
    """`missing_sums(split, whole, x, grad_y)` returns a list of the passes whose sum is missing."""
    run(_judge_tests, missing_sums)
    return f"{len(_SPLITS)} split layers on 1 to 4 devices: your test found each missing sum, and no other."


def _judge_tests(missing_sums):
    torch.manual_seed(72)
    for N, reached, odd, question in _SPLITS:
        d, num_own = 6, 5
        up, down = _layer(nn.Linear, d, N * num_own), _layer(nn.Linear, N * num_own, d, bias=False)
        if "shards" in odd:
            with torch.no_grad():
                up.weight.copy_(up.weight[:num_own].repeat(N, 1))
                up.bias.copy_(up.bias[:num_own].repeat(N))
                down.weight.copy_(down.weight[:, :num_own].repeat(1, N))
        small = 1e-6 if "millionth" in odd else 1
        if small < 1:
            up.bias.data *= small
        x, grad_y = small * _random(7, d), small * _random(7, d)
        split, whole = _SplitPair(DeviceGroup(["cpu"] * N), up, down, reached), nn.Sequential(up, nn.ReLU(), down)
        with case(f"on {N} device{'s' * (N > 1)}{odd and f', {odd}'}"):
            with unchanged(x=x, grad_y=grad_y), unchanged(whole=whole, allow=("grad",)):
                found = missing_sums(split, whole, x, grad_y)
            _judge_test(found, [name for name in _BOTH if name in reached and N > 1], question)


def _judge_test(found, truth, question):
    is_row = isinstance(found, (list, tuple, set)) and all(name in _BOTH for name in found)
    expect(is_row, f'{short(found)} came back, and a list is asked whose items are "forward" and "backward"')
    found = [name for name in _BOTH if name in found]
    alarms, missed = [n for n in found if n not in truth], [n for n in truth if n not in found]
    told = f"your test returned {found}"
    expect(
        not (alarms and missed),
        f"{told}, and it is the other pass whose sum is missing: which result is of which pass?",
    )
    expect(
        not alarms,
        f"{told}, and the sum of the {' and the '.join(alarms)} pass is right on every device: is grad_y the gradient "
        "that both layers got, and do you allow for rounding?",
    )
    expect(not missed, f"{told}, and the sum of the {' and the '.join(missed)} pass is missing: {question}")


class _SplitPair:
    """The chapter's `SplitMLP`, whose sums may fail: `reached` is {pass: device numbers that get the sum}."""

    def __init__(self, group, up, down, reached):
        self.group, self.reached = group, reached
        pieces = (group.scatter(up.weight), group.scatter(up.bias), group.scatter(down.weight, dim=1))
        self.shards = [[piece.requires_grad_() for piece in shard] for shard in zip(*pieces)]

    def forward(self, xs):
        self.xs = [x.detach().requires_grad_() for x in xs]
        self.summands = [
            F.linear(F.relu(F.linear(x, up, bias)), down) for x, (up, bias, down) in zip(self.xs, self.shards)
        ]
        return self._sum("forward", [summand.detach().clone() for summand in self.summands])

    def backward(self, grad_ys):
        for summand, grad in zip(self.summands, grad_ys):
            summand.backward(grad)
        return self._sum("backward", [x.grad for x in self.xs])

    def _sum(self, name, summands):
        sums = [summand.clone() for summand in summands]
        self.group.all_reduce(sums)
        reached = self.reached.get(name, range(len(sums)))
        return [total if i in reached else own for i, (total, own) in enumerate(zip(sums, summands))]


# ---- 7.3 ----------------------------------------------------------------------------------------------------------

_FUSED = (  # devices, heads, heads of keys and values, numbers of a head, features in, peculiarity
    (2, 4, 4, 3, 7, ""),
    (2, 8, 4, 3, 6, _STRIDED),
    (1, 2, 1, 4, 5, ""),
    (3, 6, 3, 2, 9, _KEPT),
    (4, 8, 4, 2, 5, _SINGLE),
)


def check_7_3(split_qkv):
    """`split_qkv(group, qkv, num_heads, num_kv_heads)` returns weights, biases."""
    run(_judge_fused, split_qkv)
    return "on 1 to 4 devices, each makes its own heads' queries, keys and values, and was sent nothing else."


def _judge_fused(split_qkv):
    torch.manual_seed(73)
    for N, num_heads, num_kv_heads, head_dim, num_in, odd in _FUSED:
        qkv = _layer(nn.Linear, num_in, (num_heads + 2 * num_kv_heads) * head_dim, odd)
        if odd == _STRIDED:
            qkv.weight.data = qkv.weight.data.T.contiguous().T
        with _on(N, f"{num_heads} query heads and {num_kv_heads} key heads of {head_dim} numbers", odd):
            _judge_fused_of(split_qkv, PlacedGroup(N), qkv, num_heads, num_kv_heads, _close(odd))
    try_with_group(lambda group, new: split_qkv(group, nn.Linear(5, 24, **new), 6, 3))


def _judge_fused_of(split_qkv, group, qkv, num_heads, num_kv_heads, close):
    N, num_heads_in_all = len(group), num_heads + 2 * num_kv_heads
    for p in qkv.parameters():
        group.places.put(p, 0)
    with unchanged(qkv=qkv), group.places:
        results = split_qkv(group, qkv, num_heads, num_kv_heads)
    weights, biases = expect_row(results, 2, "what came back", of="weights, biases")
    weights = expect_row(weights, N, "weights", of="one tensor from each device")
    biases = expect_row(biases, N, "biases", of="one tensor from each device")
    for name, row, whole in (("weights", weights, qkv.weight.detach()), ("biases", biases, qkv.bias.detach())):
        heads = [n * len(whole) // num_heads_in_all for n in (num_heads, num_kv_heads, num_kv_heads)]
        truths = _shards_of(whole.split(heads), N)
        for i, (got, truth) in enumerate(zip(row, truths)):
            suspects = _fused_suspects(got, truth, whole, N, i)
            suspects |= {f"it is device {j}'s part": other for j, other in enumerate(truths) if j != i}
            _judge(f"{name}[{i}]", got, truth, suspects, "which rows of the layer are this device's?", close)
    num_parameters = qkv.weight.numel() + qkv.bias.numel()
    group.expect_through((N - 1) * num_parameters // N * qkv.weight.itemsize)
    group.expect_at(weights=weights, biases=biases)
    for i in range(1, N):
        num_received = group.num_received(qkv.weight, i) + group.num_received(qkv.bias, i)
        expect(
            num_received <= num_parameters // N,
            f"device {i} received {num_received} of the layer's {num_parameters} parameters, "
            f"and its shard has {num_parameters // N}",
        )


def _shards_of(pieces, N):
    return [torch.cat([piece.chunk(N)[i] for piece in pieces]) for i in range(N)]


def _fused_suspects(got, truth, whole, N, i):
    is_same = getattr(got, "shape", None) == truth.shape
    is_moved = is_same and torch.equal(got.detach().flatten().sort()[0], truth.flatten().sort()[0])
    stored = "it is a piece of the layer as it is stored: has this device as much of the queries as of the keys?"
    return {
        stored: whole.chunk(N)[i],
        "it is cut as if there were as many key heads as query heads": (
            _shards_of(whole.chunk(3), N)[i] if len(whole) % (3 * N) == 0 else None
        ),
        "its rows are the right ones, in another order than was asked for": got.detach() if is_moved else None,
    }


# ---- 7.4 ----------------------------------------------------------------------------------------------------------

_CONVOLUTIONS = (  # devices, channels in and out, settings, peculiarity
    (2, 26, 6, {"kernel_size": 3, "padding": 1}, ""),
    (1, 3, 4, {"kernel_size": 2}, ""),
    (3, 24, 5, {"kernel_size": 3, "stride": 2}, _KEPT),
    (4, 24, 8, {"kernel_size": (3, 4), "stride": (1, 2), "padding": (2, 1)}, _STRIDED),
    (5, 5, 3, {"kernel_size": (1, 2), "stride": (3, 1), "padding": (0, 1)}, _SINGLE),
)


def check_7_4(conv_by_input_channels):
    """`conv_by_input_channels(group, conv, x, grad_y)` returns y, grad_x, weight_grads, bias_grad."""
    run(_judge_convolutions, conv_by_input_channels)
    return "on 1 to 5 devices, with strides and paddings, output and gradients are the whole convolution's."


def _judge_convolutions(by_channels):
    torch.manual_seed(74)
    for N, num_in, num_out, settings, odd in _CONVOLUTIONS:
        conv, x = _layer(nn.Conv2d, num_in, num_out, odd, **settings), _random(2, num_in, 5, 6, odd=odd)
        with _on(N, f"{num_in} → {num_out} channels, {', '.join(f'{k} {v}' for k, v in settings.items())}", odd):
            _judge_convolution(by_channels, PlacedGroup(N), conv, x, _random(*conv(x).shape, odd=odd), _close(odd))
    _expect_kept(
        by_channels, 2, conv=_layer(nn.Conv2d, 4, 3, kernel_size=1), x=_random(2, 4, 3, 3), grad_y=_random(2, 3, 3, 3)
    )
    x_shape, y_shape = (2, 6, 3, 3), (2, 5, 3, 3)
    try_with_group(
        lambda group, new: by_channels(
            group, nn.Conv2d(6, 5, 1, **new), torch.ones(x_shape, **new), torch.ones(y_shape, **new)
        )
    )


def _judge_convolution(by_channels, group, conv, x, grad_y, close):
    N, (right_y, right_x, right_weight, right_bias) = len(group), _truth(conv, x, grad_y)
    names = "y grad_x weight_grads bias_grad"
    y, grad_x, weight_grads, bias_grad = _call(by_channels, group, names, conv=conv, x=x, grad_y=grad_y)
    _judge("y", y, right_y, _sum_suspects(right_y, conv.bias.detach()[:, None, None], N), _SUMMANDS, close)
    suspects = {f"it is {N} times too large; whose gradient was added up?": N * right_x}
    question = "does each device have the gradient of its own channels, and are they joined in order?"
    _judge("grad_x", grad_x, right_x, suspects, question, close)
    weight_grads = _judge_row("weight_grads", weight_grads, right_weight.chunk(N, 1), _OWN_INPUT, close)
    _judge_bias_gradient(bias_grad, right_bias, N, close)
    least = (2 * x.numel() + conv.weight.numel()) // N + 2 * y.numel()
    group.expect_through((N - 1) * least * x.itemsize)
    group.expect_at(y=y, grad_x=grad_x, weight_grads=weight_grads)
    for what, whole in (("the weight", conv.weight), ("x", x)):
        for i in range(1, N):
            num_received = group.num_received(whole, i)
            expect(
                num_received <= whole.numel() // N,
                f"device {i} received {num_received} of the {whole.numel()} numbers in {what}, "
                f"and computes with {whole.numel() // N}",
            )


# ---- 7.5 ----------------------------------------------------------------------------------------------------------

_PAIRS = (  # six devices first: with 2, 4 or 5, different mistakes look alike
    (6, (3, 3, 12, 10), (3, 12, 5, {"stride": 2, "padding": 1}), (12, 7, (2, 3), {})),
    (3, (5, 2, 11, 11), (2, 9, (3, 1), {"stride": (2, 3), "bias": False}), (9, 4, 2, {"padding": (1, 0)})),
    (1, (2, 2, 6, 6), (2, 3, 3, {}), (3, 2, 3, {})),
    (2, (3, 4, 9, 7), (4, 6, 3, {"padding": 1}), (6, 5, 3, {"padding": 1})),
    (8, (1, 6, 8, 8), (6, 16, 3, {}), (16, 2, 1, {"bias": False})),
    (8, (1, 6, 8, 8), (6, 8, 3, {}), (8, 4, 1, {})),  # same sizes, other layers
    (5, (4, 1, 7, 9), (1, 5, 2, {"stride": (3, 2)}), (5, 3, (1, 2), {"stride": 2, "padding": (0, 1)})),
)


def check_7_5(bytes_moved):
    """`bytes_moved(conv1, conv2, x_shape, num_devices)` returns (by_channels, by_data) in bytes."""
    run(_judge_pairs, bytes_moved)
    return f"{len(_PAIRS)} pairs of convolutions on 1 to 8 devices: each agrees to the byte with what was counted."


def _judge_pairs(bytes_moved):
    for N, x_shape, *settings in _PAIRS:
        conv1, conv2 = (nn.Conv2d(*sizes, **more) for *sizes, more in settings)
        with case(f"for {conv1} and {conv2} on {N} device{'s' * (N > 1)}, x {x_shape}"):
            with unchanged(conv1=conv1, conv2=conv2):
                answer = bytes_moved(conv1, conv2, x_shape, N)
            answer = answer.tolist() if hasattr(answer, "tolist") else answer
            answer = expect_row(answer, 2, "what came back", of="by_channels, by_data")
            answer = [expect_whole(number, name) for number, name in zip(answer, ("by_channels", "by_data"))]
            _judge_pair(answer, conv1, conv2, x_shape, N)


def _judge_pair(answer, conv1, conv2, x_shape, N):
    with torch.no_grad():
        hidden = conv1(torch.zeros(x_shape))
        num_in, num_hidden, num_out = torch.Size(x_shape).numel(), hidden.numel(), conv2(hidden).numel()
    weights, parameters = [conv1.weight, conv2.weight], [*conv1.parameters(), *conv2.parameters()]
    truth = _count(num_out + num_in, N), _count(sum(p.numel() for p in parameters), N)
    expect(truth[0] == truth[1] or tuple(answer) != truth[::-1], "both numbers are right, and they are exchanged")
    each = 8 * (N - 1)
    channels = {
        "the forward pass is there; what does the backward pass add up?": each * num_out,
        "the backward pass is there; what does the forward pass add up?": each * num_in,
        "what lies between the two layers is in it; does anybody need all of that?": each
        * (num_in + num_hidden + num_out),
    }
    question = "one all-reduce in each direction, of which two tensors, and which shapes?"
    _explain_bytes("by_channels", answer[0], truth[0], N, channels, question)
    data = {"are the biases' gradients in it?": each * sum(w.numel() for w in weights)}
    question = "how many parameters have the two layers, and what moves in an all-reduce?"
    _explain_bytes("by_data", answer[1], truth[1], N, data, question)


def _count(num_numbers, N):
    """Return the bytes that a group counts for an all-reduce of `num_numbers` float32 numbers per device."""
    group = DeviceGroup(["cpu"] * N)
    group.all_reduce([torch.zeros(1) for _ in range(N)])
    return group.total_bytes * num_numbers


def _explain_bytes(name, given, truth, N, suspects, otherwise):
    told = f"{name} is {given:,}, and {'fewer' if given > truth else 'more'} bytes were counted"
    expect(truth or not given, f"{told}: what does a device alone send?")
    usual = {
        "is that the number of numbers?": truth // 4,
        "that is the size of what is all-reduced, and an all-reduce moves more": truth // (2 * (N - 1) or 1),
        "that is one device's share": given if abs(given - truth / N) < 1 else None,
        "how many devices have something to send to another?": truth // (N - 1 or 1) * N,
        "an all-reduce adds up and hands the sum back; is each of the two counted?": truth // 2,
        "how many bytes has a float32?": truth * 2,
    }
    explain(given, truth, usual | suspects, said=told, otherwise=otherwise, close=0)


# ---- 7.6 ----------------------------------------------------------------------------------------------------------

_VOCABULARIES = (  # devices, tokens, words of a device, largest logit, dtype
    (3, 5, 30, 2, torch.float64),
    (1, 4, 40, 3, torch.float64),
    (4, 7, 32, 1000, torch.float64),
    (2, 6, 25, -1000, torch.float64),
    (5, 3, 40, 4, torch.float32),
)


def check_7_6(split_cross_entropy):
    """`split_cross_entropy(group, logits, targets)` returns losses, grad_logits."""
    run(_judge_losses, split_cross_entropy)
    return "on 1 to 5 devices, loss and gradient are those of all logits, and no device sent its logits."


def _judge_losses(split_cross_entropy):
    torch.manual_seed(76)
    for N, B, num_words, largest, dtype in _VOCABULARIES:
        logits = torch.randn(B, N * num_words, dtype=dtype)
        if largest < 0:  # all logits are far below zero
            logits += largest
        else:  # the largest of a token stands on another device than its target
            logits[torch.arange(B), torch.arange(B) * num_words % logits.shape[1]] = float(largest)
        targets = (torch.arange(B) * num_words + num_words * (N - 1) + torch.arange(B) % 2 * (num_words - 1)) % (
            N * num_words
        )
        kind = ", in float32" if dtype == torch.float32 else ""
        with case(
            f"on {N} device{'s' * (N > 1)}, {B} tokens, {N * num_words} words, "
            f"logits {'around' if largest < 0 else 'up to'} {largest}{kind}"
        ):
            _judge_loss(split_cross_entropy, PlacedGroup(N), logits, targets)

    def on_gpus(group, new):
        logits = [torch.ones(4, 6, **new | {"device": device}) for device in group.devices]
        targets = [torch.ones(4, dtype=torch.int64, device=device) for device in group.devices]
        split_cross_entropy(group, logits, targets)

    try_with_group(on_gpus)


def _judge_loss(split_cross_entropy, group, whole, targets):
    N, B, close = len(group), len(whole), 1e-5 if whole.dtype == torch.float32 else EQUAL
    leaf = whole.clone().requires_grad_()
    loss = F.cross_entropy(leaf, targets)
    loss.backward()
    given = {"logits": [part.clone() for part in whole.chunk(N, 1)], "targets": [targets.clone() for _ in range(N)]}
    for parts in given.values():
        for number, tensor in enumerate(parts):
            group.places.put(tensor, number)
    with unchanged(**given), group.places:
        results = split_cross_entropy(group, *given.values())
    losses, grads = expect_row(results, 2, "what came back", of="losses, grad_logits")
    losses = expect_row(losses, N, "losses", of="one tensor from each device")
    for i, got in enumerate(losses):
        expect_finite(got, f"losses[{i}]", _OVERFLOW)
        _judge(f"losses[{i}]", got, loss.detach(), _loss_suspects(whole, targets, N, i), _LOSS_QUESTION, close)
    grads = expect_row(grads, N, "grad_logits", of="one tensor from each device")
    for i, (got, truth) in enumerate(zip(grads, leaf.grad.chunk(N, 1))):
        expect_finite(got, f"grad_logits[{i}]", _OVERFLOW)
        suspects = _loss_gradient_suspects(whole, targets, leaf.grad, N, i)
        _judge(f"grad_logits[{i}]", got, truth, suspects, _LOSS_GRADIENT_QUESTION, close)
    group.expect_through(2 * (N - 1) * B * whole.itemsize)
    group.expect_at(losses=losses, grad_logits=grads)
    _expect_few_bytes(group, whole, N, B)


_LOSS_QUESTION = "which sum of exponentials, which maximum and which target's logit are in it?"
_LOSS_GRADIENT_QUESTION = "is it the softmax over all words, minus 1 at the target, of a mean?"


_OVERFLOW = (
    "exp of a large logit overflows, and the log of a sum that became 0 is −inf; the formula subtracts something first"
)


def _loss_suspects(whole, targets, N, i):
    parts, rows = whole.chunk(N, 1), torch.arange(len(whole))
    here = targets % parts[0].shape[1]
    exact, picked = whole.logsumexp(1), whole[rows, targets]
    of_part = [part.logsumexp(1) for part in parts]
    largest = torch.stack([part.amax(1) for part in parts])
    mixed = (torch.stack(of_part) - largest).exp().sum(0).log() + largest[i]
    everywhere = sum(part[rows, here] for part in parts)
    own = torch.where(targets // parts[0].shape[1] == i, picked, 0)
    return {
        "it is the sum over the tokens": (exact - picked).sum(),
        f"the sum of exponentials is over device {i}'s own words": (of_part[i] - picked).mean(),
        "the devices' sums of exponentials belong to different maxima, and were added as they are": (
            mixed - picked
        ).mean(),
        "the target's logit is missing": exact.mean(),
        "every device has put in a logit of its own, and one of them has the target": (exact - everywhere).mean(),
        f"only targets among device {i}'s own words have their logit in it": (exact - own).mean(),
        "the maximum was subtracted and not added again": (exact - largest.amax(0) - picked).mean(),
    }


def _loss_gradient_suspects(whole, targets, grad, N, i):
    parts, B = whole.chunk(N, 1), len(whole)
    number = parts[0].shape[1]
    one_hot = F.one_hot(targets % number, number)
    share = whole.softmax(1).chunk(N, 1)[i]
    is_mine = (targets // number == i).unsqueeze(1)
    others = {f"it is device {j}'s part": part for j, part in enumerate(grad.chunk(N, 1)) if j != i}
    return {
        "it is of the tokens' sum, and the loss is a mean": B * grad.chunk(N, 1)[i],
        "it is the softmax alone; what does the target change?": share / B,
        "1 is taken off on every device, and one of them has the target": (share - one_hot) / B,
        f"the softmax is over device {i}'s own words": (parts[i].softmax(1) - one_hot * is_mine) / B,
        "its sign is the other one": -grad.chunk(N, 1)[i],
        **others,
    }


def _expect_few_bytes(group, whole, N, B):
    """Expect that no message was as large as a device's logits, and no more bytes than three all-reduces send."""
    longest = max((len(message) for messages in group.arrived for message in messages), default=0)
    num_logits = whole.numel() // N
    expect(
        longest < num_logits,
        f"a message had {longest} numbers, and a device has {num_logits} logits: neither they nor what has their "
        "size may be sent",
    )
    most = 6 * (N - 1) * B * whole.itemsize
    expect(
        group.total_bytes <= most,
        f"the devices sent {group.total_bytes:,} bytes, and {most:,} are allowed: who needs the maximum, the sum and "
        "the target's logit of each token, and how often?",
    )
