"""Checks of chapter 05: split a batch, sum tensors, weigh parts, BatchNorm on parts, overlap, forecast a step."""

import copy

import torch
from torch import nn

from ...checks.expect import (
    Wrong,
    case,
    expect,
    expect_error,
    expect_number,
    expect_row,
    explain,
    not_a,
    same,
    short,
    unchanged,
)
from ...checks.judge import run
from ...checks.watch.fake_gpus import try_on_gpus
from .writes import Writes

_CPU = torch.device("cpu")

# ---- 5.1 ----------------------------------------------------------------------------------------------------------

_BATCHES = (  # images, devices, shapes of an image and a label, dtype of the images
    (64, 4, (3, 4, 4), (), torch.float32), (13, 4, (3, 4, 4), (), torch.float64), (10, 3, (6,), (5,), torch.float16),
    (5, 4, (1, 4, 4), (), torch.float64), (4, 4, (3, 4, 4), (), torch.uint8), (7, 1, (3, 2, 4, 4), (), torch.float32),
    (17, 8, (2, 3), (4, 4), torch.float32), (3, 2, (3, 4, 4), (), torch.float64), (1, 1, (1, 2, 2), (), torch.float32),
)  # fmt: skip
_TOO_SMALL = ((11, 13), (12, 13), (1, 5), (0, 2))  # images, devices


def check_5_1(split_batch):
    """`split_batch(x, y, devices)` returns a pair (x_part, y_part) for each device."""
    run(_judge_split, split_batch)
    return (
        f"{len(_BATCHES)} batches were split right, each part on its device, and {len(_TOO_SMALL)} small ones were "
        "refused."
    )


def _judge_split(split_batch):
    for i, (num_images, num_devices, of_image, of_label, dtype) in enumerate(_BATCHES):
        x, y = (200 * torch.rand(2 * num_images, *of_image)).to(dtype), torch.randperm(2 * num_images * 16)
        y = y[: 2 * num_images].view(-1, *[1] * len(of_label)) + torch.zeros(of_label, dtype=torch.long)
        x, y = (whole[::2] if i % 2 else whole[:num_images] for whole in (x, y))  # every other batch is not contiguous
        devices = [_CPU] * num_devices
        where = _words(num_images, num_devices) + ", x and y not contiguous" * (i % 2)
        with case(where), unchanged(x=x, y=y, devices=devices):
            _judge_pairs(split_batch(x, y, devices), x, y, num_devices)
    for num_images, num_devices in _TOO_SMALL:
        x, y = torch.randn(num_images, 3, 4, 4), torch.arange(num_images)
        with case(_words(num_images, num_devices)):
            expect_error(ValueError, lambda: split_batch(x, y, [_CPU] * num_devices), naming=(num_images, num_devices))
    try_on_gpus(lambda gpus: _split_on(split_batch, gpus), 3)


def _words(num_images, num_devices):
    return f"{num_images} image{'s' * (num_images != 1)} over {num_devices} device{'s' * (num_devices > 1)}"


def _judge_pairs(pairs, x, y, num_devices):
    pairs = expect_row(pairs, None, of="pairs")
    lengths = [len(pair) if isinstance(pair, (list, tuple)) else None for pair in pairs]
    is_turned = lengths == [num_devices] * 2 and num_devices != 2
    expect(not is_turned, "two lists came back, of images and of labels: what does one device get?")
    expect(len(pairs) == num_devices, f"{len(pairs)} part{'s' * (len(pairs) != 1)} came back: not one for each device")
    for i, pair in enumerate(pairs):
        pair = expect_row(pair, 2, f"the part of device {i}", of="x_part and y_part")
        for what, part, whole in zip(("images", "labels"), pair, (x, y)):
            expect(isinstance(part, torch.Tensor), f"the {what} of device {i} are {not_a(part, 'a tensor')}")
            expect(
                part.dim() == whole.dim() and part.shape[1:] == whole.shape[1:],
                f"the {what} of device {i} have shape "
                f"{tuple(part.shape)}, and those of the batch {tuple(whole.shape)}: which of its dims may change?",
            )
            expect(
                part.dtype == whole.dtype,
                f"the {what} of device {i} are {part.dtype}, and those of the batch {whole.dtype}",
            )
    _judge_sizes(*([len(part) for part in parts] for parts in zip(*pairs)), len(x))
    for what, parts, whole in zip(("images", "labels"), zip(*pairs), (x, y)):
        expect(
            torch.equal(torch.cat(parts), whole),
            f"put together, the parts of the {what} are not the batch in its order",
        )


def _judge_sizes(sizes, of_labels, num_images):
    expect(sizes == of_labels, f"the images were split into {sizes}, the labels into {of_labels}")
    expect(sum(sizes) == num_images, f"parts of {sizes}, together {sum(sizes)}")
    expect(min(sizes) > 0, f"parts of {sizes}; a device with an empty part does nothing, or worse, returns nan")
    expect(max(sizes) - min(sizes) <= 1, f"parts of {sizes}; their sizes may differ by one at most")
    expect(sizes == sorted(sizes, reverse=True), f"parts of {sizes}; the larger ones come first")


def _split_on(split_batch, gpus):
    devices = [gpus[1], gpus[2], gpus[0]]  # the order differs from that of the device numbers
    for source in (gpus[0], _CPU):
        x, y = torch.empty(7, 3, 4, 4, device=source), torch.empty(7, dtype=torch.long, device=source)
        with case(f"a batch on {source} over {', '.join(map(str, devices))}"):
            for i, pair in enumerate(split_batch(x, y, list(devices))):
                for what, part in zip(("images", "labels"), pair):
                    expect(
                        part.device == devices[i],
                        f"the {what} of device {i} are on {part.device}, and not on {devices[i]}",
                    )


# ---- 5.2 ----------------------------------------------------------------------------------------------------------

_SUMS = (  # tensors, shape, dtype, largest number, memory layout
    (3, (4, 3), torch.float64, 2**40, ""),
    (2, (5,), torch.float64, 2**40, ""),
    (1, (3, 2), torch.float64, 2**40, ""),
    (6, (2, 3, 4), torch.float32, 2**20, ""),
    (4, (1,), torch.float64, 2**40, ""),
    (5, (7,), torch.int64, 2**59, ""),
    (8, (2, 1, 2, 3, 2), torch.float16, 2**7, ""),
    (3, (0, 4), torch.float32, 1, ""),
    (3, (4, 3), torch.float64, 2**40, "transposed"),
    (2, (6,), torch.float32, 2**20, "every second number of a longer one"),
    (4, (2, 3, 4), torch.float64, 2**40, "transposed"),
    (2, (), torch.float64, 2**40, ""),
)
_MINDS_LAYOUT = (
    "contiguous tensors were summed right, and these are not contiguous: of such a tensor some operations, "
    "`reshape` and `flatten` among them, make a copy"
)


def check_5_2(all_reduce):
    """`all_reduce(tensors)` replaces each tensor by the sum of all, in place."""
    run(_judge_all_reduce, all_reduce)
    return "1 to 8 tensors of several shapes, dtypes and layouts were summed in place, and on devices of their own."


def _judge_all_reduce(all_reduce):
    generator = torch.Generator().manual_seed(5)
    for num_tensors, shape, dtype, most, layout in _SUMS:
        tensors = [_lay(shape, dtype, most, layout, generator) for _ in range(num_tensors)]
        given, before = list(tensors), [tensor.clone() for tensor in tensors]
        memory = [tensor.detach() for tensor in tensors]  # keeps the present memory alive, to compare with
        where = (
            f"{num_tensors} tensor{'s' * (num_tensors > 1)} of shape {shape}{layout and f', {layout} (not contiguous)'}"
        )
        with case(where), unchanged(tensors=tensors, allow=("values",)):
            all_reduce(tensors)
            same_list = len(tensors) == num_tensors and all(a is b for a, b in zip(tensors, given))
            expect(same_list, "the list has other tensors in it now; the caller's own tensors must change, in place")
            stayed = all(a.data_ptr() == b.data_ptr() and a.stride() == b.stride() for a, b in zip(given, memory))
            expect(stayed, "a tensor lies elsewhere in memory now; the sum goes into the memory that it had, its own")
            _judge_sums(given, before, layout)
    try_on_gpus(lambda gpus: _sum_on(all_reduce, gpus), 3)


def _lay(shape, dtype, most, layout, generator):
    """Return whole numbers, whose sums are exact in `dtype` in any order, but not in a less precise one."""
    size = {"": shape, "transposed": shape[::-1]}.get(layout, (*shape, 2))
    numbers = torch.randint(-most, most, size, generator=generator).to(dtype)
    return (
        numbers.permute(*reversed(range(len(shape))))
        if layout == "transposed"
        else numbers[..., 0]
        if layout
        else numbers
    )


def _judge_sums(got, before, layout):
    total, N = torch.stack(before).sum(0), len(before)
    if same(got, [total] * N, close=0):
        return
    so_far = [torch.stack(before[: i + 1]).sum(0) for i in range(N)]
    expect(not layout, _MINDS_LAYOUT)
    untouched = [i for i in range(N) if torch.equal(got[i], before[i])]
    otherwise = "was one changed before another had read it, or sent on before the sum was complete?"
    explain(got, [total] * N, {
        "all tensors are as they were; `a = a + b` makes a new tensor and leaves the old one": before,
        "that is the mean, and the sum was asked for": [total / N] * N,
        "only the first holds the sum; the others want it too": [total, *before[1:]],
        "only the last holds the sum; the others want it too": [*before[:-1], total],
        "each holds the sum of those up to itself: what do the first ones miss?": so_far,
        "the last is right, and each of the others holds what was summed up when its turn came": [*so_far[1:], total],
        "all hold the same, and in it the first is counted twice": [total + before[0]] * N,
    }, close=1e-2, otherwise=f"number {untouched[0]} is as it was" if untouched else otherwise)  # fmt: skip
    raise Wrong(f"that is the sum, but not to the last digit that {total.dtype} has: with which dtype was it added?")


def _sum_on(all_reduce, gpus):
    tensors = [torch.empty(3, 4, device=gpu) for gpu in (gpus[1], gpus[0], gpus[2])]
    with Writes() as writes:
        all_reduce(list(tensors))
    for tensor in tensors:
        where = f"on {len(gpus)} GPUs the tensor on {tensor.device} keeps its numbers"
        expect(writes.reached(tensor), f"{where}: what is written to, the tensor or a copy of it elsewhere?")


# ---- 5.3 ----------------------------------------------------------------------------------------------------------

_LABELS = (  # labels of each part, and how many of them do not count
    ((4, 3, 3, 3), (0, 0, 0, 0)), ((5, 1), (0, 0)), ((2, 6, 3), (1, 1, 0)), ((8,), (3,)), ((2, 2), (0, 0)),
    ((4, 4, 4), (1, 4, 0)), ((3, 3, 2, 1, 4), (0, 3, 1, 0, 2)), ((1, 64), (0, 40)),
)  # fmt: skip


def check_5_3(part_losses):
    """`part_losses(outputs, labels)` returns a loss for each device, whose gradients DDP may average."""
    run(_judge_losses, part_losses)
    return (
        f"{len(_LABELS)} batches, with unequal parts and labels that do not count: the average of the gradients is the "
        "whole batch's gradient."
    )


def _judge_losses(part_losses):
    generator = torch.Generator().manual_seed(6)
    for sizes, ignored in _LABELS:
        outputs = [torch.randn(n, 10, generator=generator, dtype=torch.float64, requires_grad=True) for n in sizes]
        labels = [torch.randint(10, (n,), generator=generator) for n in sizes]
        for part, n in zip(labels, ignored):
            part[:n] = -100
        counted = [n - none for n, none in zip(sizes, ignored)]
        where = f"parts of {', '.join(map(str, sizes))} labels, of which {', '.join(map(str, counted))} count"
        given = [tensor.detach().clone() for tensor in outputs]
        with case(where):
            with unchanged(labels=labels):
                losses = part_losses(outputs, labels)
            kept = all(torch.equal(tensor, before) for tensor, before in zip(outputs, given))
            expect(kept, "the outputs were changed, and they were given to be read")
            _judge_gradients(losses, outputs, labels, counted)
    try_on_gpus(lambda gpus: _losses_on(part_losses, gpus), 3)


def _judge_gradients(losses, outputs, labels, counted):
    N, total = len(outputs), sum(counted)
    losses = expect_row(losses, N, of="losses")
    for i, loss in enumerate(losses):
        what = f"the loss of device {i}"
        expect(isinstance(loss, torch.Tensor), f"{what} is {not_a(loss, 'a tensor')}")
        expect(loss.numel() == 1, f"{what} has shape {tuple(loss.shape)}, and one number was asked for")
        expect(loss.requires_grad, f"{what} has no gradient: what cut it off from the outputs?")
        expect(not loss.isnan(), f"{what} is nan: what is the mean over no labels?")
    rows = [torch.autograd.grad(loss.sum(), outputs, retain_graph=True, allow_unused=True) for loss in losses]
    for i, row in enumerate(rows):
        others = [j for j, gradient in enumerate(row) if j != i and gradient is not None and gradient.any()]
        expect(
            not others,
            f"the loss of device {i} uses the outputs of device {others and others[0]}, which a process of its own "
            "does not have",
        )
    own = [torch.zeros_like(output) if row[i] is None else row[i] for i, (row, output) in enumerate(zip(rows, outputs))]
    whole = nn.functional.cross_entropy(torch.cat(outputs), torch.cat(labels))
    truth = list(torch.autograd.grad(whole, outputs))
    explain([gradient / N for gradient in own], truth, {
        "each part counts alike, however many of its labels count": [
            total * gradient / max(n, 1) / N for gradient, n in zip(truth, counted)],
        "each part is weighted by all of its labels, and some do not count": [
            total * gradient / max(n, 1) * len(part) / sum(map(len, labels))
            for gradient, n, part in zip(truth, counted, labels)],
        "the sum of the gradients is right, and DDP returns their average": [gradient / N for gradient in truth],
        "the divisor counts labels that do not count": [
            total * gradient / sum(map(len, labels)) for gradient in truth],
        "the losses are sums, and a mean was asked for: what divides a mean?": [total * gradient for gradient in truth],
        "the losses are sums, and DDP divides them by the number of devices only": [
            total * gradient / N for gradient in truth],
    }, said="the average of the gradients is not that of the whole batch",
        otherwise="which weight does each label have in the average, and which in the whole batch's mean?",
        close=1e-6)  # fmt: skip  # a quotient of two integer tensors is float32


def _losses_on(part_losses, gpus):
    places = [gpus[1], gpus[2], gpus[0]]
    outputs = [torch.empty(3, 10, device=place, requires_grad=True) for place in places]
    labels = [torch.empty(3, dtype=torch.long, device=place) for place in places]
    with case(f"parts on {', '.join(map(str, places))}"):
        for i, loss in enumerate(part_losses(outputs, labels)):
            expect(loss.device == places[i], f"the loss of device {i} is on {loss.device}, its part on {places[i]}")


# ---- 5.4 ----------------------------------------------------------------------------------------------------------

_SPLITS = (  # sizes, channels, height = width, dtype
    ((2, 4, 3), 3, 4, torch.float64),
    ((4, 4), 3, 4, torch.float64),
    ((5, 2), 2, 3, torch.float64),
    ((8,), 3, 4, torch.float64),
    ((2, 2, 2, 2), 5, 2, torch.float64),
    ((1, 6), 1, 3, torch.float64),
    ((3, 3, 2), 3, 1, torch.float32),
)


def check_5_4(batchnorm_gaps):
    """`batchnorm_gaps(layer, x, sizes)` returns how far outputs and running_mean are from one device's."""
    run(_judge_batchnorm, batchnorm_gaps)
    return f"{len(_SPLITS)} ways to split a batch were held against the whole; with one part there is no gap."


def _judge_batchnorm(batchnorm_gaps):
    torch.manual_seed(7)
    for split, channels, width, dtype in _SPLITS:
        layer = nn.BatchNorm2d(channels, momentum=0.3, eps=0.01).to(dtype)
        with torch.no_grad():
            for tensor in (layer.weight, layer.bias, layer.running_mean):
                tensor.uniform_(-2, 2)
            layer.running_var.uniform_(1, 3)
        images = 3 * torch.randn(sum(split), channels, width, width, dtype=dtype)
        for x in (images, -images):  # their gaps have opposite signs
            with case(f"parts of {', '.join(map(str, split))}"):
                _judge_layer(batchnorm_gaps, layer, x, split)


def _judge_layer(batchnorm_gaps, layer, x, split):
    before, sizes = copy.deepcopy(layer.state_dict()), list(split)
    # The answer may restore a buffer as another tensor with the same numbers.
    with unchanged(x=x, sizes=sizes), unchanged(layer=layer, allow=("kind",)):
        found = batchnorm_gaps(layer, x, sizes)
        changed = [name for name, value in layer.state_dict().items() if not torch.equal(value, before[name])]
        names = ", ".join(changed)
        expect(
            not changed,
            f"the layer itself was changed ({names}): what does a forward pass in training mode leave in it?",
        )
    gaps = expect_row(found, 2, of="two floats")
    for gap, what in zip(gaps, ("the outputs' gap", "running_mean's gap")):
        expect(not isinstance(gap, torch.Tensor), f"{what} is {short(gap)}, and a float was asked for")
        expect(expect_number(gap, what) >= 0, f"{what} is {gap:.7g}: a difference below zero is a difference too")
    with torch.no_grad():
        _judge_gaps([0.0 if gap < 1e-12 else float(gap) for gap in gaps], layer, x, split)


def _judge_gaps(gaps, layer, x, sizes):
    whole, replicas, output, outputs = _run_split(layer, x, sizes)
    apart, means = outputs - output, [replica.running_mean - whole.running_mean for replica in replicas]
    close = 1e-6 if x.dtype == torch.float64 else 1e-3
    none = "whole and parts do not differ: did both go through one layer, or one in evaluation mode?"
    signed = "it is the largest difference in one direction only: which sign may a difference have?"
    fresh, _, fresh_output, fresh_outputs = _run_split(nn.BatchNorm2d(len(layer.weight)).to(x), x, sizes)
    chunks = [len(part) for part in x.chunk(len(sizes))]
    explain(gaps[0], _largest(apart), {
        none: 0.0, signed: min(apart.max().item(), -apart.min().item()),
        "that is the mean difference": apart.abs().mean().item(),
        "that is the difference in the first part only": _largest(apart[: sizes[0]]),
        "that is the difference between the two largest outputs": _largest(outputs.max() - output.max()),
        "did whole and parts go through copies of `layer`, or through a new one?":
            _largest(fresh_outputs - fresh_output),
        "is the batch cut as `sizes` says?": lambda: _largest(_run_split(layer, x, chunks)[3] - output),
    }, said=f"the outputs' gap is {gaps[0]:.7g}", close=close,
        otherwise="is each part normalised by its own mean and variance, and the whole batch by its own?")  # fmt: skip
    chained = copy.deepcopy(layer)
    for part in x.split(sizes):
        chained(part)
    mean = sum(means) / len(means)  # weighted by samples it would equal the whole batch's
    explain(gaps[1], _largest(means[0]), {
        signed: min(means[0].max().item(), -means[0].min().item()),
        "that is for the mean over all replicas, and only replica 0's running_mean is kept": _largest(mean),
        f"{none} Or is that for a mean over all replicas? Only replica 0's is kept": 0.0,
        "did all parts go through one replica? Each has its own": _largest(chained.running_mean - whole.running_mean),
        "that is the largest over all replicas, and replica 0's is kept": max(map(_largest, means)),
        "that is the last replica's, and replica 0's is kept": _largest(means[-1]),
        "that is the mean difference": means[0].abs().mean().item(),
        "that is how far replica 0 moved from where it started":
            _largest(replicas[0].running_mean - layer.running_mean),
        "how much of a batch's mean comes into `running_mean`?": _largest(means[0]) / layer.momentum,
    }, said=f"running_mean's gap is {gaps[1]:.7g}", close=close,
        otherwise="which running_mean was compared with that after the whole batch?")  # fmt: skip


def _run_split(layer, x, sizes):
    """Return the layer that saw the whole batch, the replicas that saw the parts, and the outputs of both."""
    whole, replicas = copy.deepcopy(layer), [copy.deepcopy(layer) for _ in sizes]
    return whole, replicas, whole(x), torch.cat([replica(part) for replica, part in zip(replicas, x.split(sizes))])


def _largest(difference):
    return difference.abs().max().item()


# ---- 5.5 ----------------------------------------------------------------------------------------------------------

_PASSES = (  # ready_ms, sum_ms
    ((27.0, 40.0, 3.0, 1.0), (22.0, 6.0, 4.0, 20.0)),  # each mistake below gives another time
    ((30.0, 20.0, 10.0), (1.0, 2.0, 3.0)),
    ((30.0, 20.0, 10.0), (5.0, 20.0, 15.0)),
    ((9.0, 2.0, 7.0, 1.0), (1.0, 4.0, 0.5, 6.0)),
    ((5.0,), (3.0,)),
    ((6.0, 6.0, 6.0), (1.0, 2.0, 4.0)),
    ((40.0, 3.0), (0.0, 90.0)),
    ((2.5, 40.0, 3.0, 1.0), (8.0, 1.0, 4.0, 30.0)),
    ((4e-4, 3e-4, 1e-4), (2e-4, 5.5e-4, 1e-4)),
)


def check_5_5(when_done):
    """`when_done(ready_ms, sum_ms)` returns the time of the last sum, with overlap and without."""
    run(_judge_when_done, when_done)
    return f"{len(_PASSES)} backward passes: their last sums were done when you said, with overlap and without."


def _judge_when_done(when_done):
    for ready, sums in _PASSES:
        ready_ms, sum_ms = list(ready), list(sums)
        with case(f"ready_ms {ready_ms}, sum_ms {sum_ms}"), unchanged(ready_ms=ready_ms, sum_ms=sum_ms):
            found = expect_row(when_done(ready_ms, sum_ms), 2, of="two times")
        names = ("the time with overlap", "the time without overlap")
        with case(f"ready_ms {ready_ms}, sum_ms {sum_ms}"):
            _judge_times(*map(expect_number, found, names), ready, sums)


def _judge_times(overlapped, after, ready, sums):
    in_order = sorted(zip(ready, sums))
    truth, all_after = _last_end(in_order), max(ready) + sum(sums)
    where = in_order[-1]
    swapped = (overlapped, after) == (all_after, truth) != (truth, all_after)
    expect(not swapped, "the two times are there in the other order: overlap comes first")
    explain(overlapped, truth, {
        "that is the time without overlap: none of these sums waits for the last gradient": all_after,
        "the link carries one sum at a time, and here some travel at once": max(a + b for a, b in zip(ready, sums)),
        "the sums leave in the order of the lists, and not in that in which gradients become complete":
            _last_end(zip(ready, sums)),
        "the sums leave from the end of the lists to their beginning": _last_end(list(zip(ready, sums))[::-1]),
        "the sum of the last gradient begins as if the link were free": where[0] + where[1],
        "the link is never idle there, even when no gradient is complete": min(ready) + sum(sums),
        "that is the time of the sums alone: when is the first gradient complete?": sum(sums),
        "that is the end of the backward pass: is the last sum done then?": max(ready),
    }, said=f"with overlap {overlapped:.7g} ms", otherwise="when does each of the sums begin, and when does it end?"
    )  # fmt: skip
    explain(after, all_after, {
        "that is the time with overlap": truth,
        "the link carries one sum at a time, and here all travel at once": max(ready) + max(sums),
        "the sums begin when the list's last gradient is complete, and others come later": ready[-1] + sum(sums),
        "the sums begin when the list's first gradient is complete, and others come later": ready[0] + sum(sums),
        "the gradients become complete during one backward pass, and here one after another's end":
            sum(ready) + sum(sums),
        "that is the time of the sums alone: when do they begin?": sum(sums),
    }, said=f"without overlap {after:.7g} ms",
        otherwise="when is the last gradient complete, and how long does the link take for all sums?")  # fmt: skip


def _last_end(messages):
    """Return the time at which a link that carries one after the other has carried all (ready, duration)."""
    free = 0.0
    for ready, duration in messages:
        free = max(free, ready) + duration
    return free


# ---- 5.6 ----------------------------------------------------------------------------------------------------------

_FORECASTS = (  # a_ms, b_ms, num_images, num_devices, numels, bytes_per_s, latency_ms
    (7.0, 1.25, 48, 4, (600_000, 3_000, 400_000), 4e9, 0.03),
    (7.0, 1.25, 48, 2, (600_000, 3_000, 400_000), 4e9, 0.03),
    (7.0, 1.25, 48, 1, (600_000, 3_000, 400_000), 4e9, 0.03),
    (2.4, 0.008, 64, 8, (2304, 48) * 41, 125e6, 0.05),
    (-0.5, 1.4, 63, 3, (100_000, 20_078), 125e6, 0.0),
    (20.0, 0.5, 256, 16, (25_000_000,), 1.25e10, 0.01),
    (3.0, 2.0, 40, 5, (), 1e9, 0.1),
)


def check_5_6(forecast_ms):
    """`forecast_ms(a_ms, b_ms, …, latency_ms)` returns the milliseconds of a step on several devices."""
    run(_judge_forecast, forecast_ms)
    return f"{len(_FORECASTS)} forecasts are right, of one device to sixteen."


def _judge_forecast(forecast_ms):
    for a, b, B, N, elements, rate, latency in _FORECASTS:
        numels = list(elements)
        with case(
            f"a {a} and b {b} ms, {B} images, {N} device{'s' * (N > 1)}, {len(numels)} tensors of "
            f"{sum(numels):,} numbers, {rate:g} bytes/s, {latency} ms a message"
        ):
            with unchanged(numels=numels):
                found = expect_number(forecast_ms(a, b, B, N, numels, rate, latency), "the forecast")
            alone, num_messages = a + b * B / N, 2 * (N - 1) * len(numels)
            sent = 2 * (N - 1) * 1e3 * 4 * sum(numels) / rate
            waits = num_messages * latency
            truth = alone + sent + waits
            explain(found, truth, {
                "nothing is sent there": alone,
                "gradients go one way there, and nothing comes back": alone + (sent + waits) / 2,
                "all devices send there, also the one that makes the sums": alone + (sent + waits) * N / max(N - 1, 1),
                "how many bytes does a gradient in float32 have?": truth - 3 * sent / 4,
                "seconds are added to milliseconds": truth - 0.999 * sent,
                "the messages have no latency": alone + sent,
                "the latency comes once for all tensors there: what is in one message?":
                    alone + sent + 2 * (N - 1) * latency,
                "the latency comes once a step there, and it belongs to each message": alone + sent + latency,
                "the latency comes once for a tensor there: to how many devices, and in how many directions, "
                "does the tensor go?": alone + sent + len(numels) * latency,
                "the fixed cost is divided, too, and every device pays it in full": truth - a + a / N,
                "the fixed cost is missing": truth - a,
                "each device has all images there": truth - b * B / N + b * B,
            }, said=f"{found:.6g} ms", otherwise="what does one device compute, and what is sent?")  # fmt: skip
