"""Messages between the devices of one process arrive, are copies, and are counted to the byte."""

import pytest
import torch

from course_utils import hardware
from course_utils.parallel.device_group import DeviceGroup
from tests.helpers.machines import A100, H200, P100
from tests.helpers.played_gpus import PlayedGpus


def cpu_group(num_devices):
    return DeviceGroup(["cpu"] * num_devices)


@pytest.mark.parametrize("num_devices", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [4, 5, 7, 8])
def test_scatter_hands_out_every_sample_once_in_parts_as_equal_as_can_be(num_devices, length):
    group, batch = cpu_group(num_devices), torch.randn(length, 3)
    parts = group.scatter(batch)
    lengths = [len(part) for part in parts]
    assert len(parts) == num_devices and lengths == sorted(lengths, reverse=True) and lengths[0] - lengths[-1] <= 1
    assert torch.equal(torch.cat(parts), batch)
    away = sum(lengths[1:]) * 3 * 4
    assert group.sent_bytes == [away] + [0] * (num_devices - 1)
    assert group.received_bytes == [0] + [length * 3 * 4 for length in lengths[1:]]


def test_no_part_shares_memory_with_what_was_split():
    weight = torch.zeros(4, 6)
    for part in cpu_group(2).scatter(weight, dim=1):
        assert part.untyped_storage().nbytes() == weight.nbytes // 2
        part += 1
    assert not weight.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("num_devices", [1, 2, 3, 4])
def test_all_reduce_leaves_the_sum_on_every_device_and_moves_2_n_minus_1_times_its_bytes(num_devices, dtype):
    group = cpu_group(num_devices)
    tensors = [torch.arange(15).reshape(3, 5).to(dtype) * (i + 1) for i in range(num_devices)]
    expected = sum(tensors)
    before = list(tensors)
    group.all_reduce(tensors)
    assert all(torch.equal(tensor, expected) for tensor in tensors)
    assert all(a is b for a, b in zip(tensors, before))
    assert group.total_bytes == sum(group.received_bytes) == 2 * (num_devices - 1) * expected.nbytes
    group.reset()
    assert group.total_bytes == 0


def test_gradients_of_leaves_can_be_reduced_in_place():
    weights = [torch.ones(3, requires_grad=True) for _ in range(2)]
    cpu_group(2).all_reduce(weights)
    assert all(torch.equal(weight, torch.full((3,), 2.0)) and weight.requires_grad for weight in weights)


def test_gather_all_gather_and_broadcast_join_and_repeat_along_any_dim():
    group, whole = cpu_group(3), torch.randn(2, 7)
    parts = group.scatter(whole, dim=1)
    group.reset()
    assert torch.equal(group.gather(parts, dim=1), whole)
    assert group.received_bytes == [parts[1].nbytes + parts[2].nbytes, 0, 0]
    copies = group.all_gather(parts, dim=1)
    assert len(copies) == 3 and all(torch.equal(copy, whole) for copy in copies)
    assert len({copy.data_ptr() for copy in copies}) == 3
    group.reset()
    group.broadcast(whole)
    assert group.sent_bytes == [2 * whole.nbytes, 0, 0] and group.received_bytes == [0, whole.nbytes, whole.nbytes]


def test_what_is_sent_is_a_copy_without_autograd():
    group, x = cpu_group(2), torch.ones(3, requires_grad=True)
    arrived = group.send(x * 2, 0, 1)
    assert not arrived.requires_grad and arrived.grad_fn is None
    kept = torch.ones(3)
    group.send(kept, 0, 1).zero_()
    assert kept.all()
    assert group.send(kept, 1, 1).data_ptr() == kept.data_ptr() and group.sent_bytes == [24, 0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DeviceGroup([]), "the list is empty"),
        (lambda: DeviceGroup(["cpu", "cuda:99"]), "there is no cuda:99"),
        (lambda: DeviceGroup(["gpu"]), "'gpu' names no device"),
        (lambda: DeviceGroup([1.5]), "1.5 names no device"),
        (lambda: DeviceGroup(["meta"]), "neither the CPU nor an NVIDIA GPU"),
        (lambda: cpu_group(4).scatter(torch.zeros(3)), "1 of 4 devices would get an empty part"),
        (
            lambda: cpu_group(3).scatter(torch.zeros(64, 5), equal=True),
            "length 64, which 3 devices cannot share equally",
        ),
        (lambda: cpu_group(2).send(torch.zeros(1), 0, 2), "no device number 2: this group's numbers are 0 to 1"),
        (lambda: cpu_group(2).send(torch.zeros(1, device="meta"), 0, 1), "the tensor to send is on meta"),
        (lambda: cpu_group(2).all_reduce([torch.zeros(1)] * 3), "3 tensors came for 2 devices"),
        (lambda: cpu_group(2).gather([torch.zeros(1)]), "1 tensors came for 2 devices"),
    ],
)
def test_bad_input_is_one_sentence_that_names_it(make, words):
    with pytest.raises(ValueError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (torch.ones(3), r"number 0 has \(2,\) float32; number 1 has \(3,\) float32"),
        (torch.ones(2, dtype=torch.float64), "number 1 has .* float64"),
    ],
)
def test_an_all_reduce_that_cannot_be_changes_nothing(second, words):
    tensors = [torch.ones(2), second]
    group = cpu_group(2)
    with pytest.raises(ValueError, match=words):
        group.all_reduce(tensors)
    assert all(tensor.eq(1).all() for tensor in tensors) and group.total_bytes == 0


def test_all_reduce_refuses_one_tensor_given_twice():
    tensor = torch.ones(4)
    for tensors in ([tensor, tensor], [tensor[:2], tensor[2:]]):
        with pytest.raises(ValueError, match="two of them share memory"):
            cpu_group(2).all_reduce(tensors)
    assert tensor.eq(1).all()


def test_a_group_says_which_devices_it_has():
    assert str(cpu_group(1)) == "the CPU"
    assert str(cpu_group(3)) == "the CPU, 3 times"


@pytest.mark.parametrize("machine", [{"cards": [H200] * 2, "slices": {0: 2, 1: 2}}, {"cards": [A100, P100]}])
def test_a_gpu_that_torch_counts_and_cannot_use_is_not_free(machine):
    """In MIG mode torch counts GPUs of which CUDA gives one slice, and it counts GPUs too old for its kernels."""
    with PlayedGpus(machine):
        assert str(DeviceGroup(hardware.devices(4))) == "cuda:0, 4 times"
        with pytest.raises(ValueError, match="there is no cuda:1: this machine has 1 GPU"):
            DeviceGroup(["cuda:0", "cuda:1"])


@pytest.mark.gpu
def test_on_gpus_the_sum_is_the_same_and_a_gpu_is_not_named_twice_while_another_is_free():
    group = DeviceGroup(hardware.devices(3))
    tensors = [torch.full((5,), float(i + 1), device=device) for i, device in enumerate(group.devices)]
    group.all_reduce(tensors)
    assert all(tensor.device == device and tensor.eq(6).all() for tensor, device in zip(tensors, group.devices))
    assert group.total_bytes == 2 * 2 * 20
    if len(hardware.gpus()) > 1:
        with pytest.raises(ValueError, match="cuda:0 stands in the list of devices 2 times although cuda:1 is free"):
            DeviceGroup(["cuda:0", "cuda:0"])
