"""Checks of chapter 05: a batch split, tensors summed, the mean of unequal parts, BatchNorm on a part of a batch."""

import copy
import math
import numbers
import os
import re
import reprlib

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
)

from .wrong import expect, judge_in_worker, max_difference

_CPU = torch.device("cpu")


def _try_on_gpus(run, num_devices):
    """Call `run(devices)` with tensors that have shapes and devices and no numbers, on GPUs that need not exist.

    PyTorch refuses to mix devices with them as it does with real ones. An answer that looks at a number, with `.item()` or
    an `if`, cannot be judged so, and passes. Runs in a worker of its own, where GPUs are hidden.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # or PyTorch would look for a GPU of each number
    FakeTensor.numpy = _zeros_in_numpy  # PyTorch refuses it on any device; a worker of its own has no other use for it
    devices = [torch.device("cuda", i) for i in range(num_devices)]
    with FakeTensorMode(allow_non_fake_inputs=True):
        try:
            torch.empty(1, device=devices[-1])
        except RuntimeError:  # a PyTorch that was built without CUDA
            return
        try:
            run(devices)
        except DataDependentOutputException:
            return
        except RuntimeError as error:  # what PyTorch raises where devices are mixed
            words = str(error).strip().partition("\n")[0]
            expect(False, f"it works where all tensors are on one device, and fails on {num_devices} GPUs: {words}")


def _zeros_in_numpy(tensor, **_):
    if tensor.device.type != "cpu":
        raise RuntimeError(f"a tensor on {tensor.device} has no numpy(); .cpu() comes before it")
    return np.zeros(tensor.shape)


# ---- 5.1 ----------------------------------------------------------------------------------------------------------

_BATCHES = ((64, 4), (13, 4), (10, 3), (5, 4), (4, 4), (7, 1), (17, 8))  # images, devices


def check_5_1(split_batch):
    """`split_batch(x, y, devices)` returns a pair (x_part, y_part) for each device."""
    judge_in_worker(_judge_split, split_batch)
    return f"{len(_BATCHES)} batches were split right, each part on its device, and a batch that is too small was refused."


def _judge_split(split_batch):
    for num_images, num_devices in _BATCHES:
        where = f"{num_images} images over {num_devices} device{'s' * (num_devices > 1)}"
        x = torch.randn(num_images, 3, 4, 4)
        y = torch.randperm(num_images)
        before = x.clone(), y.clone()
        devices = [_CPU] * num_devices
        pairs = split_batch(x, y, devices)
        expect(devices == [_CPU] * num_devices, f"{where}: the caller's list of devices was changed")
        _expect_pairs(pairs, num_devices, where)
        sizes = [len(x_part) for x_part, _ in pairs]
        expect(sizes == [len(y_part) for _, y_part in pairs],
               f"{where}: the images were split into {sizes}, the labels into {[len(y_part) for _, y_part in pairs]}")
        expect(sum(sizes) == num_images, f"{where}: parts of {sizes}, together {sum(sizes)}")
        expect(min(sizes) > 0, f"{where}: parts of {sizes}; a device with an empty part does nothing, or worse, returns nan")
        expect(max(sizes) - min(sizes) <= 1, f"{where}: parts of {sizes}; their sizes may differ by one at most")
        expect(sizes == sorted(sizes, reverse=True), f"{where}: parts of {sizes}; the larger ones come first")
        for what, whole, position in (("images", before[0], 0), ("labels", before[1], 1)):
            parts = [pair[position] for pair in pairs]
            expect(all(part.shape[1:] == whole.shape[1:] for part in parts),
                   f"{where}: parts of the {what} have the shape {tuple(parts[0].shape)}; along which dim were they split?")
            expect(all(part.dtype == whole.dtype for part in parts), f"{where}: the {what} came back as {parts[0].dtype}")
            expect(torch.equal(torch.cat(parts), whole),
                   f"{where}: put together, the parts of the {what} are not the batch in its order")
        expect(torch.equal(x, before[0]) and torch.equal(y, before[1]), f"{where}: the batch itself was changed")
    for num_images, num_devices in ((11, 13), (0, 2)):
        _expect_refused(split_batch, num_images, num_devices)
    _try_on_gpus(lambda devices: _split_on(split_batch, devices), 3)


def _expect_pairs(pairs, num_devices, where):
    expect(isinstance(pairs, (list, tuple)), f"{where}: the answer is {reprlib.repr(pairs)}, not a list of pairs")
    lists = [len(part) for part in pairs if isinstance(part, (list, tuple))]
    two_lists = lists == [num_devices] * 2 and num_devices != 2
    expect(not two_lists, f"{where}: two lists came back, of images and of labels; a pair for each device was asked for")
    came = f"{len(pairs)} part{'s' * (len(pairs) != 1)}"
    expect(len(pairs) == num_devices, f"{where}: {came} came back: not one for each device")
    for pair in pairs:
        is_pair = isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(part, torch.Tensor) for part in pair)
        expect(is_pair, f"{where}: a device's part is {reprlib.repr(pair)}, not a pair of tensors (x_part, y_part)")


def _expect_refused(split_batch, num_images, num_devices):
    where = f"{num_images} images over {num_devices} devices"
    try:
        split_batch(torch.randn(num_images, 3, 4, 4), torch.arange(num_images), [_CPU] * num_devices)
    except ValueError as error:
        named = re.findall(r"\d+", str(error))
        numbers_named = {str(num_images), str(num_devices)} <= set(named)
        expect(numbers_named, f"{where}: the ValueError says {str(error)!r}; whoever reads it wants to know both numbers")
        return
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError) as error:
        expect(False, f"{where}: raised a {type(error).__name__} ({error}), and not a ValueError that says why")
    expect(False, f"{where}: nothing was raised, and there are too few images for all to have one")


def _split_on(split_batch, devices):
    x, y = torch.randn(7, 3, 4, 4, device=devices[0]), torch.zeros(7, dtype=torch.long, device=devices[0])
    devices = [devices[1], devices[2], devices[0]]  # a device's place in the list is not its name's number
    for i, pair in enumerate(split_batch(x, y, list(devices))):
        for what, part in zip(("images", "labels"), pair):
            expect(part.device == devices[i], f"the {what} of device {i} are on {part.device}, and should be on {devices[i]}")


# ---- 5.2 ----------------------------------------------------------------------------------------------------------


def check_5_2(all_reduce):
    """`all_reduce(tensors)` replaces each tensor by the sum of all, in place."""
    judge_in_worker(_judge_all_reduce, all_reduce)
    return "1 to 6 tensors of several shapes and dtypes were summed in place, and on devices of their own."


def _judge_all_reduce(all_reduce):
    generator = torch.Generator().manual_seed(5)
    for num_devices, shape, dtype in ((2, (5,), torch.float64), (1, (3, 2), torch.float64), (3, (4, 3), torch.float64),
                                      (6, (2, 3, 4), torch.float32), (4, (), torch.float64), (5, (7,), torch.int64)):
        where = f"{num_devices} tensor{'s' * (num_devices > 1)} of shape {shape}"
        # Whole numbers, so that a sum in any order is exact; too large for a dtype that is less exact than theirs.
        most = 2**20 if dtype == torch.float32 else 2**40
        tensors = [torch.randint(-most, most, shape, generator=generator).to(dtype) for _ in range(num_devices)]
        if len(shape) == 2:
            tensors = [tensor.t() for tensor in tensors]  # the gradient of a transposed weight lies so in memory
        before = [tensor.clone() for tensor in tensors]
        given, places = list(tensors), [tensor.data_ptr() for tensor in tensors]
        all_reduce(tensors)
        same = len(tensors) == num_devices and all(a is b for a, b in zip(tensors, given))
        expect(same, f"{where}: the list has other tensors in it now; the caller's own tensors must change, in place")
        stayed = all(t.data_ptr() == place for t, place in zip(given, places))
        expect(stayed, f"{where}: a tensor lies elsewhere in memory now; the sum goes into the memory that it had, its own")
        total = torch.stack(before).sum(0).to(dtype)
        right = [torch.equal(tensor, total) for tensor in given]
        if all(right):
            continue
        untouched = [torch.equal(a, b) for a, b in zip(given, before)]
        expect(not all(untouched),
               f"{where}: all tensors are as they were; `a = a + b` makes a new tensor and leaves the old one")
        is_mean = all(torch.allclose(t.double(), total.double() / num_devices, rtol=0, atol=1) for t in given)
        expect(not is_mean, f"{where}: that is the mean; the sum was asked for")
        is_near = all(torch.allclose(tensor.double(), total.double(), rtol=1e-2) for tensor in given)
        expect(not is_near, f"{where}: that is the sum, but not to the last digit that {dtype} has: with which dtype was it added?")
        expect(not (right[0] and all(untouched[1:])), f"{where}: only the first holds the sum; the others want it too")
        for number, is_untouched in enumerate(untouched):
            expect(not is_untouched, f"{where}: number {number} is as it was")
        expect(not (right[-1] and not right[0]), f"{where}: the last is right, the first is not: what did it miss?")
        expect(False, f"{where}: number {right.index(False)} is not the sum of what all held at first; was one changed before "
                      "another had read it, or sent on before the sum was complete?")
    _try_on_gpus(lambda devices: all_reduce([torch.empty(3, 4, device=device) for device in devices]), 3)


# ---- 5.3 ----------------------------------------------------------------------------------------------------------

_PARTS = ((4, 3, 3, 3), (5, 1), (8,), (2, 2, 2), (1, 0, 6), (0, 0, 7, 2), (3, 5, 0))


def check_5_3(mean_of_parts):
    """`mean_of_parts(means, num_samples)` returns the mean over all samples."""
    judge_in_worker(_judge_mean, mean_of_parts)
    return f"{len(_PARTS)} batches in unequal parts, empty ones among them, gave the mean of the whole."


def _judge_mean(mean_of_parts):
    generator = torch.Generator().manual_seed(6)
    for num_samples in _PARTS:
        for shape in ((), (3, 2)):
            where = f"means over {', '.join(map(str, num_samples))} samples, of shape {shape}"
            samples = torch.randn(sum(num_samples), *shape, generator=generator, dtype=torch.float64)
            means = [part.mean(0) for part in samples.split(num_samples)]
            before, given = [mean.clone() for mean in means], list(num_samples)
            found, truth = mean_of_parts(means, given), samples.mean(0)
            expect(given == list(num_samples) and len(means) == len(before), f"{where}: one of the lists was changed")
            same = all(torch.equal(a.nan_to_num(99), b.nan_to_num(99)) for a, b in zip(means, before))
            expect(same, f"{where}: the means that were given have changed; `+=` and `*=` change a tensor in place")
            expect(isinstance(found, torch.Tensor), f"{where}: the answer is {reprlib.repr(found)}, not a tensor")
            expect(found.dtype == truth.dtype, f"{where}: the means are {truth.dtype}, and the answer is {found.dtype}")
            far = max_difference(found, truth)
            if far < 1e-9:
                continue
            expect(not found.isnan().any(), f"{where}: nan came back; what does a part without samples contribute?")
            several = [mean for mean, n in zip(means, num_samples) if n]
            sums = sum(mean * n for mean, n in zip(means, num_samples) if n)
            for other, reason in (
                (sum(several) / len(several), "each part counts alike, however many samples it has"),
                (sum(several) / len(means), "each part counts alike, and those without samples too"),
                (sums, "that is the sum over all samples, not their mean"),
                (sums / len(means), "the sum over all samples is divided by the number of parts"),
                (sum(several) / sum(num_samples), "means are added as if they were sums"),
                (sum(several), "that is the sum of the means"),
            ):
                expect(max_difference(found, other) > 1e-9, f"{where}: {reason} (max difference {far:.2g})")
            expect(False, f"{where}: that is not the mean over all {sum(num_samples)} samples (max difference {far:.2g})")
    _try_on_gpus(lambda devices: _mean_on(mean_of_parts, devices), 3)


def _mean_on(mean_of_parts, devices):
    for num_samples in ([3, 3, 2], [0, 3, 2]):
        found = mean_of_parts([torch.empty(3, 4, device=device) for device in devices], num_samples)
        expect(found.device == devices[0], f"{num_samples} samples: the answer is on {found.device}, and should be on the first "
                                           f"tensor's device, {devices[0]}")


# ---- 5.4 ----------------------------------------------------------------------------------------------------------

_SPLITS = ((5, 2), (4, 4), (3, 3, 2), (8,), (2, 2, 2, 2))


def check_5_4(batchnorm_gaps):
    """`batchnorm_gaps(layer, x, sizes)` returns how far outputs and running_mean are from one device's."""
    judge_in_worker(_judge_batchnorm, batchnorm_gaps)
    return f"{len(_SPLITS)} ways to split a batch were held against the whole; with one part there is no gap."


def _judge_batchnorm(batchnorm_gaps):
    torch.manual_seed(7)
    for sizes in _SPLITS:
        where = f"parts of {', '.join(map(str, sizes))}"
        layer = nn.BatchNorm2d(3, momentum=0.3).double().requires_grad_(False)
        with torch.no_grad():
            for tensor in (layer.weight, layer.bias, layer.running_mean):
                tensor.uniform_(-2, 2)
        x = 3 * torch.randn(sum(sizes), 3, 4, 4, dtype=torch.float64) + torch.arange(sum(sizes)).view(-1, 1, 1, 1)
        before, given, given_sizes = copy.deepcopy(layer.state_dict()), x.clone(), list(sizes)
        found = batchnorm_gaps(layer, x, given_sizes)
        expect(layer.training, f"{where}: the layer is in evaluation mode now")
        changed = [name for name, value in layer.state_dict().items() if not torch.equal(value, before[name])]
        expect(not changed, f"{where}: the layer itself was changed ({', '.join(changed)}); in training mode each forward "
                            "pass updates its statistics")
        expect(torch.equal(x, given), f"{where}: x was changed")
        expect(given_sizes == list(sizes), f"{where}: the list of sizes was changed")
        is_pair = isinstance(found, (tuple, list)) and len(found) == 2
        expect(is_pair, f"{where}: the answer is {reprlib.repr(found)}, not two numbers")
        are_tensors = any(isinstance(gap, torch.Tensor) for gap in found)
        expect(not are_tensors, f"{where}: two floats were asked for; .item() makes one of a tensor")
        are_numbers = all(isinstance(gap, numbers.Real) and math.isfinite(gap) for gap in found)
        expect(are_numbers, f"{where}: {found!r} are not two finite numbers")
        _compare_gaps([float(gap) for gap in found], layer, x, sizes, where)


@torch.no_grad()
def _compare_gaps(found, layer, x, sizes, where):
    whole, parts = copy.deepcopy(layer), [copy.deepcopy(layer) for _ in sizes]
    output = whole(x)
    outputs = torch.cat([net(part) for net, part in zip(parts, x.split(sizes))])
    gaps = (outputs - output).abs()
    means = [(net.running_mean - whole.running_mean).abs() for net in parts]
    truth = gaps.max().item(), means[0].max().item()
    for gap, right, what in zip(found, truth, ("the outputs", "running_mean")):
        said = f"{where}: the largest difference in {what} is {right:.7g}, and the answer is {gap:.7g}"
        if math.isclose(gap, right, rel_tol=1e-6, abs_tol=1e-12):
            continue
        expect(gap >= 0, f"{said}: a negative difference is large too")
        expect(right < 1e-12 or gap > 1e-12, f"{said}: did whole and parts go through the same layer, or through one in "
                                             "evaluation mode, or is that a mean over all replicas?")
        mixed = (sum(net.running_mean for net in parts) / len(parts) - whole.running_mean).abs().max().item()
        expect(what == "the outputs" or not math.isclose(gap, mixed, rel_tol=1e-6, abs_tol=1e-9),
               f"{said}: is that the mean over all replicas? Only replica 0's is kept")
        if what == "the outputs":
            expect(not math.isclose(gap, gaps.mean().item(), rel_tol=1e-6), f"{said}: that is the mean difference")
            first = gaps[: sizes[0]].max().item()
            expect(not math.isclose(gap, first, rel_tol=1e-6), f"{said}: that is the difference in the first part only")
            expect(False, f"{said}: is each part normalised by its own mean and variance, in training mode?")
        chained = copy.deepcopy(layer)
        for part in x.split(sizes):
            chained(part)
        last = (chained.running_mean - whole.running_mean).abs().max().item()
        expect(not math.isclose(gap, last, rel_tol=1e-6), f"{said}: did all parts go through one replica? Each has its own")
        of_last = means[-1].max().item()
        expect(not math.isclose(gap, of_last, rel_tol=1e-6), f"{said}: that is the last replica's; replica 0's is kept")
        expect(not math.isclose(gap, means[0].mean().item(), rel_tol=1e-6), f"{said}: that is the mean difference")
        expect(False, f"{said}: which replica's running_mean was compared with that of the whole batch?")
