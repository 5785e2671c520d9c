"""measure.alive: what is counted while operations run, and what collectives are said to move."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_utils import launch
from course_utils.measure import alive


def test_a_tensor_counts_from_its_operation_until_it_is_let_go():
    x = torch.zeros(100)  # 400 bytes
    with alive.Alive([x]) as watch:
        y = x + 1
        view = y[:10]
        del y, view
        x.sum()
    assert watch.num_bytes == [800, 800, 404]
    assert watch.peak == 800


def test_a_storage_that_is_emptied_counts_no_more_and_the_next_module_sees_it():
    x, layer = torch.zeros(100), nn.Identity()
    with alive.Alive([x]) as watch:
        x.untyped_storage().resize_(0)
        layer(x)
        x.untyped_storage().resize_(400)
        x.zero_()
    assert watch.num_bytes == [0, 400]
    layer(x)
    assert len(watch.num_bytes) == 2  # outside nothing is watched


def test_meta_tensors_have_no_bytes_and_phases_say_which_operations_ran_in_them():
    with alive.Alive() as watch:
        with watch.phase("first"):
            torch.zeros(10, device="meta")
        with watch.phase("second"):
            torch.zeros(10) + 1
    assert watch.num_bytes[0] == 0
    assert watch.phases == {"first": (0, 1), "second": (1, 3)}


def send_one_of_each():
    whole, part = torch.zeros(8), torch.zeros(4)
    with alive.Alive([whole, part]) as watch:
        dist.all_reduce(whole)
        dist.reduce_scatter_tensor(part, whole)
        dist.all_gather_into_tensor(whole, part)
    return watch.messages


def test_an_all_reduce_moves_its_bytes_twice_and_its_halves_once():
    assert launch(send_one_of_each, world_size=2).results == [[64, 32, 32]] * 2


def watch_sharded_layer():
    layer = nn.Linear(8, 8, bias=False)
    fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.Adam(layer.parameters())

    def step(phase):
        optimizer.zero_grad()
        with phase("forward"):
            loss = layer(torch.zeros(2, 8)).sum()
        with phase("backward"):
            loss.backward()
        with phase("Adam"):
            optimizer.step()

    step(alive.contextlib.nullcontext)
    parameters = list(layer.parameters())
    found = alive.watch_step(step, [*parameters, *alive.states(optimizer)], "cpu")
    return alive.held_bytes(parameters, optimizer), found


def test_of_a_sharded_layer_each_rank_holds_half_and_a_step_has_phases():
    for held, step in launch(watch_sharded_layer, world_size=2):
        assert held == {"parameters": 128, "gradients": 128, "optimizer state": 260}  # 4 bytes: Adam's count of steps
        assert list(step.phases) == ["forward", "backward", "Adam"]
        assert sum(step.messages) == 2 * 256  # one unit is gathered once, and its gradient reduced
        assert step.peak > min(step.num_bytes) >= 128 + 256
        assert step.on_gpu is None
