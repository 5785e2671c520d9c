"""A rank of a large job that does not exist holds what the planner says, and a real one of a small job does, too."""

import contextlib
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate
from torch.distributed.tensor import parallel as tp
from torch.nn.parallel import DistributedDataParallel

from course_utils import WorkerError, launch, models, train
from course_utils.chapters.c19_choosing import jobs
from course_utils.chapters.c19_choosing.any_rank import any_rank
from course_utils.measure import alive
from course_utils.planner import GPU, Cluster, Method, plan
from course_utils.planner.counting import count

B = 16  # samples a rank
HERE = Cluster(GPU("a CPU", 1e12, 1e10, {"fp32": 1e11}), gpus_per_node=4, inside=1e9)


def watch(way, mesh, sizes, b=B):
    """What this rank holds in a step of a transformer with Adam."""
    model = models.transformer(*sizes)
    if way == "fsdp":
        for unit in [*model, model]:
            fully_shard(unit, mesh=mesh)
    elif way == "ddp":
        model = DistributedDataParallel(model)
    return jobs.held(model, torch.rand(b, 1, 16, 16), torch.zeros(b, dtype=torch.long))


def planned(way, world_size, sizes, b=B):
    with torch.device("meta"):
        model = models.transformer(*sizes)
    network = count(model, torch.zeros(2, 1, 16, 16), parts=list(model))
    method = Method(world_size, shard="full" if way == "fsdp" else "none", precision="fp32", micro_batch=b)
    return plan(network, HERE, method, world_size * b)


def assert_alike(found, said):
    """Every number of bytes in `found` is the planned one."""
    planned = {"parameters": said.memory["weights"], "peak": said.peak}
    for name, num_bytes in found.items():
        assert num_bytes == pytest.approx((planned.get(name) or said.memory[name]).value, rel=0.05), name


SIZES = 256, 64, 2  # width, of a head, blocks
WORLD_SIZE = 3  # of the real ranks


@pytest.fixture(scope="module")
def real():
    """What each of some real ranks holds, by the way in which they train."""

    def both():
        mesh = init_device_mesh("cpu", (WORLD_SIZE,))
        return {way: watch(way, mesh, SIZES) for way in ("ddp", "fsdp")}

    return launch(both, world_size=WORLD_SIZE).results


def test_real_ranks_hold_what_is_planned(real):
    for way, found in real[0].items():
        assert_alike(found, planned(way, WORLD_SIZE, SIZES))


def test_a_rank_that_does_not_exist_holds_what_a_real_one_does(real):
    """Of the same size: the padding of shards, too."""
    for rank in (0, WORLD_SIZE - 1):
        with any_rank(rank, WORLD_SIZE) as no_values:
            mesh = init_device_mesh("cpu", (WORLD_SIZE,))
            with no_values:
                found = watch("fsdp", mesh, SIZES)
        truth = dict(real[rank]["fsdp"])
        assert found.pop("peak") == pytest.approx(truth.pop("peak"), rel=0.01)
        assert found == truth


def test_any_rank_of_1024_holds_what_is_planned_and_takes_no_memory():
    sizes = 4096, 128, 2
    Path("/proc/self/clear_refs").write_text("5")  # the most memory that this process has had is what it has now
    before = train.peak_bytes(torch.device("cpu"))
    with any_rank(1023, 1024) as no_values:
        mesh = init_device_mesh("cpu", (1024,))
        with no_values:
            found = watch("fsdp", mesh, sizes, b=2)
    said = planned("fsdp", 1024, sizes, b=2)
    assert said.network.parameters > 4e8
    assert_alike(found, said)
    assert train.peak_bytes(torch.device("cpu")) - before < 200e6  # a copy of the parameters has 1,600e6
    assert not dist.is_initialized()


def test_tensor_parallel_inside_nodes_and_sharded_between():
    """1,024 ranks as 128 × 8: the layers of each block are divided by 8, and what is left of them by 128."""
    with any_rank(700, 1024) as no_values:
        mesh = init_device_mesh("cpu", (128, 8), mesh_dim_names=("data", "tensor"))
        data, tensor = mesh["data"], mesh["tensor"]
        with no_values:
            model = models.transformer(4096, 128, 2)
            columns, rows = ([name.replace("1-4", "1-2") for name in names] for names in train.CUTS["transformer"])
            halves = {name: tp.ColwiseParallel() for name in columns} | {name: tp.RowwiseParallel() for name in rows}
            halves["[1-2].attention"] = tp.PrepareModuleInput(
                input_layouts=Replicate(), desired_input_layouts=Replicate()
            )
            tp.parallelize_module(model, tensor, halves)
            for unit in [*model, model]:
                fully_shard(unit, mesh=data)
            found = jobs.held(model, torch.rand(2, 1, 16, 16), torch.zeros(2, dtype=torch.long))
    method = Method(128, 8, shard="full", precision="fp32", micro_batch=2)
    said = plan(planned("fsdp", 1, (4096, 128, 2)).network, HERE, method, 256)
    del found["activations"]  # of a block's products each rank has columns, which the plan of one rank does not know
    assert_alike(found, said)


def test_the_second_stage_of_a_pipeline():
    """Of four, with four micro-batches of two samples: it keeps three of them at once."""
    with any_rank(256 + 3, 1024) as no_values:
        mesh = init_device_mesh("cpu", (4, 256), mesh_dim_names=("pipeline", "data"))
        group = mesh["pipeline"].get_group()
        with no_values:
            model = models.transformer(2048, 128, 22)[6:12]  # of 24 layers in a row
            x = torch.rand(2, 16, 2048, requires_grad=True)
            stage = PipelineStage(
                model, 1, 4, torch.device("cpu"), input_args=(x,), output_args=(model(x),), group=group
            )
            schedule = Schedule1F1B(stage, 4, loss_fn=F.cross_entropy)
            optimizer = torch.optim.Adam(model.parameters())

            def step(phase):
                optimizer.zero_grad()
                schedule.step()
                optimizer.step()

            peak = alive.watch_step(step, list(model.parameters()), "cpu").peak
            held = alive.held_bytes(list(model.parameters()), optimizer)
    method = Method(pipeline=4, precision="fp32", micro_batch=2)
    said = plan(planned("fsdp", 1, (2048, 128, 22)).network, HERE, method, 8)
    assert_alike({"peak": peak} | {name: held[name] for name in ("parameters", "optimizer state")}, said)


def test_a_worker_has_a_rank_already():
    def worker():
        with any_rank(0, 8):
            pass

    with pytest.raises(WorkerError, match="this process is a rank of a real process group"):
        launch(worker, world_size=1)


def test_a_rank_that_cannot_be_is_refused_and_leaves_nothing():
    with pytest.raises(ValueError, match="rank is 8, and of 8 ranks the last is 7"), any_rank(8, 8):
        pass
    with contextlib.suppress(ZeroDivisionError), any_rank(0, 8):
        raise ZeroDivisionError
    assert not dist.is_initialized()
