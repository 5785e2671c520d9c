"""A torchrun script's main() runs through `launch` as it is, and does what it does under torchrun."""

import json

import pytest

from tests.helpers.torchrun import free_ports

# The forms in which scripts begin and end, in small.
FORMS = """
import datetime, os
import torch, torch.distributed as dist, torch.nn as nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355" if "TORCHELASTIC_RUN_ID" not in os.environ else os.environ["MASTER_PORT"]
    init_process_group("gloo", rank=rank, world_size=world_size)

def total(group=None):
    x = torch.tensor(dist.get_rank() + 1.0)
    dist.all_reduce(x, group=group)
    return x.item()

def train(model, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.full((2, 4), 1.0 + dist.get_rank() + step)).square().mean()
        loss.backward()
        optimizer.step()
    return round(loss.item(), 6)

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

def demo_basic():
    setup(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    loss = train(DDP(net()))
    destroy_process_group()
    return loss

def env_only():
    dist.init_process_group(backend="gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    loss = train(DDP(net()))
    dist.barrier()
    dist.destroy_process_group()
    return local_rank, loss

def with_everything():
    dist.init_process_group("gloo", "env://", timeout=datetime.timedelta(minutes=1), world_size=2,
                            rank=int(os.environ["RANK"]))
    return total()

def nothing_said():
    dist.init_process_group("cpu:gloo")
    return dist.get_world_size(), total()

def fully_sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    init_process_group("gloo")
    model = net()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    loss = train(model)
    destroy_process_group()
    return loss

def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    model = parallelize_module(net(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return round(model(torch.ones(2, 4)).sum().item(), 5)

def pipeline():
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    init_process_group("gloo")
    rank, layers = dist.get_rank(), net()
    stage = PipelineStage(layers[:2] if rank == 0 else layers[2:], rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2)
    out = schedule.step(torch.ones(4, 4)) if rank == 0 else schedule.step()
    destroy_process_group()
    return None if out is None else round(out.sum().item(), 5)

def groups():
    dist.init_process_group("gloo")
    each = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return total(each[dist.get_rank()]), total()

def mesh_again_and_again():
    from torch.distributed.device_mesh import init_device_mesh
    sums = []
    for port in ("12355", "12356", "12355"):
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", port
        init_device_mesh("cpu", (2,))
        sums.append(total())
        dist.barrier()
        destroy_process_group()
    return sums

def doubled(x): return 2 * x

def remote_call():
    import torch.distributed.rpc as rpc
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29500"
    rank = int(os.environ["RANK"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    value = rpc.rpc_sync("worker1", doubled, args=(4,)) if rank == 0 else None
    rpc.shutdown()
    return value

def destroy():
    init_process_group("gloo")
    destroy_process_group()

def again_and_again():
    sums = []
    for _ in range(3):
        setup(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        sums.append(total())
        dist.barrier()
        destroy_process_group()
    return sums

FORMS = (demo_basic, env_only, with_everything, nothing_said, fully_sharded, tensor_parallel, pipeline, groups)
"""
# Each form with a store of its own: gloo's addresses of the form before stay in the last one's.
SCRIPT = """
if __name__ == "__main__":
    import json
    for form, port in zip(FORMS, PORTS):
        os.environ["MASTER_PORT"] = port
        with open(f"{form.__name__}.{os.environ['RANK']}", "w") as file:
            json.dump(form(), file)
        if dist.is_initialized():
            dist.barrier()
            destroy_process_group()
"""


@pytest.fixture
def prepared(notebook):
    """The shared notebook with the forms, whose workers have, as they begin, what these would otherwise each import."""
    with notebook.keeping_names():
        notebook.run(FORMS + "\nfrom course_utils import Ranks, launch")
        notebook.wait_until_warm()
        yield notebook


def test_every_form_gives_what_it_gives_under_torchrun(prepared, torchrun, tmp_path):
    (tmp_path / "script.py").write_text(f"PORTS = {free_ports(8)}\n{FORMS}{SCRIPT}")
    codes, said = torchrun(tmp_path / "script.py")
    assert codes == [0, 0], said
    got = prepared.run("""
import json
json.loads(json.dumps({form.__name__: launch(form, world_size=2).results for form in FORMS}))
""")
    assert len(got.value) == 8
    assert got.value == {
        name: [json.loads((tmp_path / f"{name}.{rank}").read_text()) for rank in (0, 1)] for name in got.value
    }
    said = "[rank 0] init_process_group: there is a process group already; it is used as it is"
    assert got.stdout.count(said) == 7  # of 8: tensor parallelism makes no group of its own


@pytest.mark.parametrize("backend", ["auto", None])
def test_a_group_is_made_again_after_it_was_destroyed(prepared, backend):
    """The store of torchrun keeps the addresses of the first group."""
    assert prepared.run(f"launch(again_and_again, world_size=2, backend={backend!r}).results").value == [[3.0] * 3] * 2


@pytest.mark.parametrize("backend", ["auto", None])
def test_a_mesh_makes_the_group_again_whatever_the_port(prepared, backend):
    got = prepared.run(f"launch(mesh_again_and_again, world_size=2, backend={backend!r}).results")
    assert got.value == [[3.0] * 3] * 2


@pytest.mark.parametrize("backend", ["auto", None])
def test_remote_calls_meet_at_the_launchs_store_whatever_the_port(prepared, backend):
    assert prepared.run(f"launch(remote_call, world_size=2, backend={backend!r}).results").value == [8, None]


def test_requests_to_ranks_that_persist_make_and_destroy_groups(prepared):
    """The first of them is as content with the group that is there as a launch is."""
    requests = {
        "destroy": None,
        "nothing_said": (2, 3.0),
        "mesh_again_and_again": [3.0] * 3,
        "again_and_again": [3.0] * 3,
    }
    first, got = prepared.run(f"""
with Ranks(2) as ranks:
    first = ranks.run(env_only)
    got = [ranks.run(request) for request in ({", ".join(requests)}, {", ".join(requests)}, nothing_said, nothing_said)]
    got += [ranks.run(remote_call), ranks.run(remote_call)]
first, got
""").value
    assert [local_rank for local_rank, _ in first] == [0, 1]
    assert got == [[one] * 2 for one in [*requests.values()] * 2 + [(2, 3.0)] * 2] + [[8, None]] * 2


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("'nccl'", "asks for nccl, and this launch has cpu:gloo"),
        ("'gloo', world_size=3", "asks for world_size=3, and here it is 2"),
        ("'gloo', rank=5", "asks for rank=5, and here it is "),
        ("device_id=torch.device('cuda:99')", "asks for device_id=cuda:99, and this rank's device is c"),
        ("'nix'", "asks for nix, and this launch has"),
        ("device_id=torch.device('cpu')", "asks for device_id=cpu, and torch takes it only with an index"),
    ],
)
def test_another_group_than_the_launchs_is_refused_with_what_to_do(prepared, asked, words):
    outcome = prepared.fail(f"launch(lambda: init_process_group({asked}), world_size=2, backend='gloo')")
    head = outcome.message.splitlines()[0]
    assert head.startswith(f"rank {outcome.message[5]}: ValueError: init_process_group {words}"), outcome.shown
    assert head.endswith("or make the group yourself, with launch(…, backend=None)")


def test_what_torch_does_not_know_is_torchs_to_say(prepared):
    outcome = prepared.fail("launch(lambda: init_process_group(nonsense=3), world_size=1)")
    assert "TypeError: init_process_group() got an unexpected keyword argument 'nonsense'" in outcome.message


def test_its_timeout_counts(prepared):
    outcome = prepared.fail("""
def wait():
    init_process_group("gloo", timeout=datetime.timedelta(seconds=1))
    if dist.get_rank() == 0: dist.barrier()
    else: __import__("time").sleep(100)
launch(wait, world_size=2, timeout=60)
""")
    assert outcome.message.startswith("rank 0: ") and "imed out" in outcome.message, outcome.shown
