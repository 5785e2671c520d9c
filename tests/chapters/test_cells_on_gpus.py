"""The chapters' functions on simulated GPUs (`helpers.played_gpus`).

They catch a tensor left on the CPU, two devices in one operation, and errors in a branch that only a GPU takes. The
numbers are real, and are compared with the CPU's where the chapter compares them.
"""

import ast
import functools
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from course_utils import WorkerError, hardware, rank_device
from course_utils.parallel import messages
from tests.helpers.played_gpus import PlayedGpus, on_machine
from tools import notebooks

# By chapter: names whose assignments the functions need, and what is to be run in one process.
ONE_PROCESS = {
    "01": ("device away digits second has_second", """
assert (device.type, away.type) == ("cuda", "cuda") and has_second
ways = make_ways(1024)
assert [str(each.device) for each in ways["GPU to GPU"]] == ["cuda:0", "cuda:1"]
assert len(ways) == 6 and ways["to the GPU, pinned"][1].is_cuda and not ways["from the GPU, pinned"][1].is_cuda
assert copies.time_copies(make_ways, [1024], rounds=1).keys() == ways.keys()
for source, target in ways.values():
    time_call(source, target)
train(device, num_steps=2)
"""),
    "02": ("device HAS_GPU", """
assert HAS_GPU
truth = torch.rand(4, device=device)
bandwidth.gb_per_s(lambda: truth.copy_(truth), 8, 2, device)
asked = []
bandwidth.gb_per_s(lambda: asked.append(1), 8, 50, device)
assert len(asked) == 2 * 50  # to load the kernel, and to record it: Python asks for none of those that are timed
two_clocks(8)
"""),
    "03": ("cpu device free LARGE DEVICES SIZES digits BATCH_SIZE LR REPEATS ROUNDS", """
assert DEVICES == {"CPU": cpu, "GPU": device} and device.type == "cuda"
assert LARGE == [1024, 4096] and SIZES["GPU"][-2:] == (1024, 4096) and 4096 not in SIZES["CPU"]
torch.testing.assert_close(train(device, 2), train(cpu, 2), rtol=1e-9, atol=1e-12)
make_step(2, device, 8)()
for behind in (False, True):
    make_phased_step(2, device, behind)(lambda name: contextlib.nullcontext())
assert count_gflops(make_step(2, device, 4)) > 0
assert weights_and_peak() == (0, 512, 0)  # what a library holds is not the weights'
"""),
    "04": ("device ON_GPU digits packed decoded on_device LAST AMP HALF NUM_WORKERS AT_ONCE", """
assert ON_GPU and AMP == HALF == torch.bfloat16
BATCH_SIZE, few = 4, lambda batches: iter([next(batches) for _ in range(2)])
make_plain_training(few(load()))()
for batches in (prefetch(few(load())), batches_on_device(), batches_on_device(LAST, 8)):
    x, y = next(batches)
    assert x.is_cuda and y.is_cuda
make_training(batches_on_device(), AMP)()
made, adam = [], torch.optim.Adam
torch.optim.Adam = lambda *args, **kwargs: made.append(adam(*args, **kwargs)) or made[-1]
make_training(batches_on_device(LAST), AMP, LAST)()
torch.optim.Adam = adam
assert made[0].defaults["fused"] is None  # False is slower than rung 0's default: a loop in Python
switches, found = (torch.backends.cudnn.conv, torch.backends.cuda.matmul), {}
read = lambda: [switch.fp32_precision for switch in switches]
usual = read()
for allowed in (True, False):
    rungs.with_tf32(lambda: found.update({allowed: read()}), allowed)()
assert found == {True: ["tf32"] * 2, False: ["ieee"] * 2} and read() == usual
in_format(None, True, 8)()
assert gradient().is_cuda and gradient(double=True).is_cuda
bright = torch.rand(2, 64, device=device)
brighten(torch.float32, num_steps=1)
brighten(torch.bfloat16, num_steps=1)
"""),
    "06": ("BATCH_SIZE ROUNDS device0 device1 group digits x y devices branches", """
x, y, waited = x[:8], y[:8], []
torch._C._cuda_hasPrimaryContext, torch.cuda.synchronize = (lambda index: index < 2), waited.append
timed_step(Net(device0, device1), x)
assert waited == [device0, device1] * 5  # every reading of the clock waits for both
waited.clear()
backward_branch(forward_branch(branches[1], device1, x), torch.ones(8, 512))
assert waited == [device1] * 2
"""),
}  # fmt: skip

# By chapter: the same for workers, started by `on_gpus(worker, *arguments, world_size=)`, once for each machine. Where
# `own(world_size)`, each has a GPU of its own, and NCCL; else they share the GPUs with gloo.
WORKERS = {
    "00": ("", """
import inspect
assert inspect.signature(seconds_to_exchange).parameters["backend"].default == "gloo"  # NCCL's start takes seconds
assert [each["device"] for each in on_gpus(where_am_i, world_size=2)] == ["cuda:0", f"cuda:{1 if own(2) else 0}"]
"""),
    "08": ("TOLERANCES MIB WORLD_SIZE", """
LENGTHS = (5,)
ways = all_reduce_through_0, all_reduce_tree, all_reduce_doubling, all_reduce_halving
on_gpus(lambda: [compare(way) for way in ways], world_size=3)
for backend in ("nccl", "gloo") if own(2) else ("gloo",):
    on_gpus(sweep.time_ways, backend, make_step, [1, 4096], 1, 1, world_size=2)
    on_gpus(sweep.time_ways, backend, make_library, [8], 1, 1, world_size=2)
on_gpus(count_crossing, two_levels, world_size=4)
"""),
    "09": ("digits test ROUNDS SCALING_ROUNDS NUM_EPOCHS HALF", """
images, labels = digits.images.double()[:128], digits.labels[:128]
on_gpus(time_averaging, world_size=2)
for cap in (0.1,):
    on_gpus(lambda: make_step(cap, device=rank_device())(), world_size=2)
with tempfile.TemporaryDirectory() as folder:
    path = str(Path(folder) / "digits.pt")
    on_gpus(train_digits, digits.images[:64], digits.labels[:64], num_epochs=1, path=path, world_size=2)
for said in on_gpus(use_one_layer, find_unused_parameters=True, world_size=2):
    assert said.startswith("bytes of the all-reduces, by step: [[660, ")
SIZES, BATCH, BLOCK = (1, 2), 8, 2
cases = [("no DDP", 1), ("strong", 1), ("weak", 2), (HALF[2], 2)]
assert [len(timing.seconds) for timing in on_gpus(time_training, cases, world_size=2)[0].values()] == [8] * 4
nn = types.SimpleNamespace(DataParallel=lambda model, gpus: model)  # which copies a model in C++
num_used, timing = on_gpus(time_data_parallel, world_size=1)[0]
nn = torch.nn
assert (num_used, len(timing.seconds)) == (3 if own(3) else 1, 6)  # as many as it sees: one, on a shared node
"""),
    "12": ("digits x y SCHEDULES", """
on_gpus(lambda: (run_split(torch.float64), count_block(3, 5, 32)), world_size=2)
on_gpus(run_columns, torch.randn(3, 4), torch.randn(8, 4), torch.randn(3, 8), world_size=4)
first, (loss, *last) = on_gpus(step_naively, x.double(), y, world_size=2)
for sizes in SIZES.values():
    on_gpus(run_three, x, y, sizes, torch.float64, world_size=len(sizes))
"""),
    "13": ("images labels digits", """
images, labels = images[:64], labels[:64]
truth = train(make_model())
for parameters in on_gpus(train_net, None, world_size=2, backend="gloo"):
    torch.testing.assert_close(parameters, truth, rtol=1e-9, atol=1e-12)
"""),
    "19": ("BATCH PARTS ROUNDS", """
for found in on_gpus(hold, "DDP", world_size=2):
    assert found["peak"] > found["parameters"] > 0
assert all(0 <= share <= 1 for found in on_gpus(ask, 8, world_size=2) for share in found.values())
"""),
}  # fmt: skip
# The machines that make a difference to a chapter's launches: fewer GPUs than workers, exactly as many, and more. On
# one with four GPUs, test_chapters_on_gpus.py runs chapters 05 to 13.
NUM_GPUS = {"00": (1, 2), "08": (1, 3), "09": (1,), "12": (2,), "13": (1,), "19": (2,)}


def names_of(chapter, assigned):
    (path,) = notebooks.notebook_paths([chapter])
    return notebooks.definitions(path, assigned.split())


@functools.cache
def workers_names(chapter):
    return names_of(chapter, WORKERS[chapter][0])


@pytest.fixture(autouse=True)
def without_a_choice(monkeypatch):
    """A chapter's setup may keep the notebook to the CPU; the next test chooses again."""
    monkeypatch.setenv("COURSE_DEVICE", "")
    monkeypatch.delenv("COURSE_DEVICE")


@pytest.mark.parametrize("chapter", ONE_PROCESS)
def test_functions_of_one_process(chapter):
    assigned, code = ONE_PROCESS[chapter]
    with PlayedGpus():
        names = names_of(chapter, assigned)
        exec(compile("import contextlib, io, types\n" + code, f"chapter {chapter}", "exec"), names)


@pytest.mark.parametrize(("chapter", "num_gpus"), [(each, n) for each in WORKERS for n in NUM_GPUS[each]])
def test_workers(chapter, num_gpus):
    names = workers_names(chapter)
    names["on_gpus"] = functools.partial(on_machine, num_gpus)
    names["own"] = lambda world_size: num_gpus >= world_size
    exec(compile("import types\n" + WORKERS[chapter][1], f"chapter {chapter}", "exec"), names)


def not_on_its_own_gpu():
    dist.all_reduce(torch.ones(2, device="cuda:0"))


def two_ranks_on_one_gpu():
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(2, device="cuda"))


def barrier_without_a_device(choose=lambda: None):
    choose()
    dist.init_process_group("nccl")
    dist.barrier()
    return torch.cuda.current_device()


def cpu_tensor_in_nccl(name):
    x, group = torch.ones(2), dist.new_group(backend="nccl")
    dist.all_reduce(x)  # the default group has gloo, too
    if name in ("send", "recv"):
        getattr(dist, name)(x, 1 - dist.get_rank(), group=group)
    else:
        getattr(dist, name)(x, group=group)


def message_to_oneself():
    dist.isend(torch.ones(1, device=rank_device()), dist.get_rank())


def gpu_tensor_by_gloo():
    dist.isend(torch.ones(1, device=rank_device()), 1 - dist.get_rank())


def different_collectives():
    x = torch.ones(2, device=rank_device())
    everyone = list(torch.empty(2, 2, device=rank_device()))
    if dist.get_rank() == 0:
        dist.all_reduce(x, async_op=True)
    else:
        dist.all_gather(everyone, x, async_op=True)


def different(kind):
    mine = {"shape": (torch.ones(2), torch.ones(3)), "dtype": (torch.ones(2), torch.ones(2, dtype=torch.int32))}
    dist.all_reduce(mine[kind][dist.get_rank()].to(rank_device()), async_op=True)


def two_orders_of_messages():
    """Both ranks send first: gloo's isend returns at once, NCCL's stands in one queue with the recv behind it."""
    x, other = torch.ones(2, device=rank_device()), 1 - dist.get_rank()
    sending = dist.isend(x, other)
    dist.recv(torch.empty_like(x), other)
    sending.wait()


def message_between_collectives():
    x = torch.ones(2, device=rank_device())
    if dist.get_rank() == 0:
        sending = dist.isend(x, 1)
        dist.all_reduce(x)
        sending.wait()
    else:
        dist.all_reduce(x)
        dist.recv(x, 0)


def different_units_of_fsdp():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(rank_device())
    mesh = init_device_mesh("cuda", (2,))
    for unit in (*model[dist.get_rank() :], model):
        fully_shard(unit, mesh=mesh)
    model(torch.ones(2, 4, device=rank_device())).sum().backward()


def bucket_beside_another(of_ddp):
    """An all-reduce that one rank asks for before the backward pass, and the other after it."""
    x, model = torch.ones(3, device=rank_device()), nn.Linear(2, 2).to(rank_device())
    if of_ddp:
        model = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cuda", (2,))
        model = parallelize_module(model, mesh, RowwiseParallel(output_layouts=Replicate()))
    group = None if of_ddp else mesh.get_group()
    inputs = torch.ones(2, 2 if of_ddp else 1, device=rank_device())
    if dist.get_rank() == 0:
        dist.all_reduce(x, group=group, async_op=True)
    model(inputs).sum().backward()
    if dist.get_rank() == 1:
        dist.all_reduce(x, group=group, async_op=True)


def barrier_taken_before(barrier):
    """A function that was sent to the workers is not the one that is watched."""
    if dist.get_rank() == 0:
        barrier(async_op=True)


def hook_on_two_devices():
    x = torch.ones(2, device=rank_device(), requires_grad=True)
    x.register_hook(lambda gradient: torch.ones(2, device="cuda") + torch.ones(2))
    x.sum().backward()


def one_order_after_another():
    """CPU tensors are gloo's, in any order that gloo takes; a batch of messages has no order inside."""
    x, other = torch.full((2,), 1.0 + dist.get_rank(), device=rank_device()), 1 - dist.get_rank()
    sending = dist.isend(torch.ones(1), other)
    dist.recv(torch.empty(1), other)
    sending.wait()
    theirs = torch.empty_like(x)
    messages.exchange(x, other, theirs, other)
    dist.all_reduce(x, group=dist.new_group())
    dist.all_reduce(theirs)
    assert x.equal(theirs)
    return x.tolist()


@pytest.mark.parametrize(
    ("worker", "args", "words"),
    [
        (not_on_its_own_gpu, (), "not on device passed to init_process_group: cuda:0, and not cuda:1"),
        (two_ranks_on_one_gpu, (), "Duplicate GPU detected : rank . and rank . both on CUDA device cuda:0"),
        (barrier_without_a_device, (), "Duplicate GPU detected : rank . and rank . both on CUDA device cuda:0"),
        (cpu_tensor_in_nccl, ("all_reduce",), "No backend type associated with device type cpu"),
        (cpu_tensor_in_nccl, ("send",), "No backend type associated with device type cpu"),
        (cpu_tensor_in_nccl, ("recv",), "No backend type associated with device type cpu"),
        (message_to_oneself, (), "Trying to send to self without a matching recv"),
        (different_collectives, (), "NCCL leaves this undefined: collective 1"),
        (different, ("shape",), "NCCL leaves this undefined: collective 1"),
        (different, ("dtype",), "NCCL leaves this undefined: collective 1"),
        (two_orders_of_messages, (), "NCCL would hang or mix up tensors"),
        (message_between_collectives, (), "NCCL would hang or mix up tensors"),
        (different_units_of_fsdp, (), "NCCL leaves this undefined"),
        (bucket_beside_another, (True,), "NCCL leaves this undefined"),
        (bucket_beside_another, (False,), "NCCL leaves this undefined"),
        (barrier_taken_before, (dist.barrier,), "NCCL would hang or mix up tensors"),
        (hook_on_two_devices, (), "Expected all tensors to be on the same device"),
    ],
)
def test_what_nccl_refuses_or_leaves_undefined(worker, args, words):
    backend = None if worker in (two_ranks_on_one_gpu, barrier_without_a_device) else "auto"
    with pytest.raises(WorkerError, match=words):
        on_machine(2, worker, *args, world_size=2, backend=backend)


def test_what_nccl_and_gloo_allow():
    assert on_machine(2, barrier_without_a_device, rank_device, world_size=2, backend=None).results == [0, 1]
    assert on_machine(2, one_order_after_another, world_size=2).results == [[3.0] * 2] * 2
    with pytest.raises(WorkerError, match="gloo's isend takes CPU tensors only, and this one is on cuda:0"):
        on_machine(1, gpu_tensor_by_gloo, world_size=2)


def test_what_a_gpu_refuses_is_refused_here():
    with PlayedGpus():
        net, x = torch.nn.Linear(3, 3), torch.ones(2, 3, device="cuda:1")
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            net(x)  # it was left on the CPU
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            net.to("cuda:0")(x)
        y = net.to("cuda:1")(x)
        assert y.device == x.device and y.is_cuda and y.cpu().device.type == "cpu"
        with pytest.raises(RuntimeError, match="same device"):
            torch.nn.functional.cross_entropy(y, torch.tensor([0, 1]))
        with pytest.raises(TypeError, match="can't convert cuda:1"):
            y.detach().numpy()
        y.sum().backward()
        assert net.weight.grad.device == x.device
        x += torch.tensor(2.0)  # a number goes with everything
        assert x.cpu().tolist() == [[3.0] * 3] * 2
    assert not torch.cuda.is_initialized() and torch.ones(1).device.type == "cpu"


@pytest.mark.parametrize("num_gpus", [2, 3, 4, 8])
def test_no_size_of_a_scaling_curve_moves_the_others_off_their_gpus(num_gpus):
    with PlayedGpus(num_gpus):
        names = names_of("09", "num_devices on_gpus LEAST SIZES BLOCK")
        assert names["SIZES"][:2] == [1, 2] and hardware.choose_backend(names["SIZES"][-1]).backend == "nccl"
        assert names["BLOCK"] > 2  # DDP rebuilds its buckets in the second step, within the block that warms up


def test_data_parallel_is_named_by_the_gpus_that_it_had():
    """On a node that a class shares, a launch of one worker has reserved one GPU of eight."""
    (path,) = notebooks.notebook_paths(["09"])
    (source,) = [cell.source for cell in notebooks.read(path).cells if "def time_data_parallel" in cell.source]
    only_with_gpus = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    with PlayedGpus("8 A100"):
        names = names_of("09", "num_devices on_gpus LEAST SIZES")
    names |= {"BATCH": 8, "BLOCK": 1, "timings": {}, "placements": [], "launch": functools.partial(on_machine, 1)}
    exec(compile(ast.Module(only_with_gpus, type_ignores=[]), "chapter 09", "exec"), names)
    assert list(names["timings"]) == [("DataParallel", 1)]


@pytest.mark.parametrize(("machine", "is_hidden"), [("V100", 1), ("8 A100", 0)])
def test_a_program_does_not_see_gpus_that_the_course_does_not_use(machine, is_hidden, tmp_path):
    """Such as one for which this torch has no kernels: torch.cuda.is_available() is true all the same."""
    program = tmp_path / "program.py"
    program.write_text("import os\nprint(int(os.environ.get('CUDA_VISIBLE_DEVICES') == ''))")
    with PlayedGpus(machine):
        names = names_of("09", "num_devices on_gpus")
        names["PROGRAM"] = program
        assert names["run_program"]() == is_hidden


def test_cells_ask_the_course_for_gpus_and_not_torch():
    """PyTorch sees those that the course leaves alone, too; then torch.backends.cudnn.version() raises, for one."""
    words = ("cuda.is_available", "cuda.device_count", "cudnn.version", "cudnn.is_available")
    cells = [(path.stem[:2], cell) for path in notebooks.notebook_paths() for cell in notebooks.read(path).cells]
    asked = {chapter for chapter, cell in cells if cell.cell_type == "code" and any(map(cell.source.count, words))}
    assert asked == {"05"}  # which keeps DataParallel off such GPUs


@pytest.mark.parametrize(("setting", "backends"), [("", ["gloo", "nccl"]), ("cpu", ["gloo"])])
def test_nccl_is_timed_where_the_course_uses_gpus(setting, backends, monkeypatch):
    (path,) = notebooks.notebook_paths(["08"])
    (source,) = [cell.source for cell in notebooks.read(path).cells if "BACKENDS = {" in cell.source]
    with PlayedGpus(8):
        monkeypatch.setenv("COURSE_DEVICE", setting)
        names = names_of("08", "WORLD_SIZE")
        exec(source, names)
    assert list(names["BACKENDS"]) == backends


@pytest.mark.parametrize(("free_gib", "size"), [(3, 64), (40, 1024)])
def test_large_batches_are_timed_where_they_fit(free_gib, size):
    with PlayedGpus("4 GB laptop"):
        torch.cuda.mem_get_info = lambda device: (free_gib * 2**30, 80 * 2**30)
        assert names_of("04", "device ON_GPU roomy FORMAT_SIZE BATCH_SIZE")["FORMAT_SIZE"] == size


ON_THE_CPU = ["10", "12", "13", "16", "17", "19"]  # unless each of four workers has a GPU
NO_GPU = ["14", "18"]  # on the CPU on every machine


def test_all_chapters_that_compute_on_the_cpu_are_tested_and_described():
    paths = notebooks.notebook_paths()
    for call, chapters in (("hardware.cpu_unless_gpus(", ON_THE_CPU), ("hardware.keep_to_cpu()", NO_GPU)):
        assert [path.stem[:2] for path in paths if call in path.read_text()] == chapters
    for num_gpus, chapters in ((1, sorted(ON_THE_CPU + NO_GPU)), (8, NO_GPU)):
        with PlayedGpus(num_gpus):
            rows = [line for line in hardware.describe(full=True).splitlines() if "on the CPU" in line]
        assert re.findall(r"\b\d\d\b", " ".join(row.partition("on the CPU")[0] for row in rows)) == chapters


@pytest.mark.parametrize("chapter", ON_THE_CPU)
def test_a_chapter_that_computes_on_the_cpu_says_so(chapter, monkeypatch, capsys):
    """The launcher's line names the device that four workers use: theirs, or the CPU, never GPUs that are idle."""
    monkeypatch.setenv("COURSE_DEVICE", "")  # so that what the cell sets is undone
    (path,) = notebooks.notebook_paths([chapter])
    lines = [line for cell in notebooks.read(path).cells for line in cell.source.splitlines()]
    (line,) = [line for line in lines if line.startswith("hardware.cpu_unless_gpus(")]
    for num_gpus, where in (
        (1, "on the CPU"),
        (3, "on the CPU"),
        (4, "can use one GPU each"),
        (8, "can use one GPU each"),
    ):
        with PlayedGpus(num_gpus):
            exec(line, {"hardware": hardware, "WORLD_SIZE": 4})
            assert where in hardware.choose_backend(4).note
    said = "{} for 4 workers, and this chapter needs one for each: from here on, launch keeps to the CPU"
    assert capsys.readouterr().out.splitlines() == [said.format("1 GPU"), said.format("3 GPUs")]


@pytest.mark.parametrize("chapter", NO_GPU)
def test_a_chapter_that_needs_no_gpu_says_so(chapter, monkeypatch, capsys):
    monkeypatch.setenv("COURSE_DEVICE", "")
    (path,) = notebooks.notebook_paths([chapter])
    sources = [cell.source for cell in notebooks.read(path).cells if cell.cell_type == "code"]
    calls, launches = ([i for i, s in enumerate(sources) if w in s] for w in ("hardware.keep_to_cpu()", "launch("))
    assert len(calls) == 1 and calls[0] < launches[0]
    for num_gpus in (1, 8):
        with PlayedGpus(num_gpus):
            hardware.keep_to_cpu()
            assert "on the CPU" in hardware.choose_backend(4).note
    hardware.keep_to_cpu()
    said = "this chapter needs no GPU: from here on, launch keeps to the CPU"
    assert capsys.readouterr().out.splitlines() == [said, said]


# The deliberate failures of workers that join a group, by chapter: names that the cell needs, and what it must show.
FAILURES = {
    "00": ("", "was given no images\\n.*\\n\\nranks 0, 1 and 3 were in all_reduce"),
    "08": ("", "rank 0 was in all_reduce .*\\nrank 1 was in all_gather"),
    "09": ("WORLD_SIZE digits batches", "ranks 1–3 had returned while rank 0 was in \\w*backward"),
    "10": ("WORLD_SIZE digits images labels", "rank 3 was in barrier"),
    "12": ("SIZES digits x y", "ranks 0 and 1 were in recv"),
}  # fmt: skip


@pytest.mark.parametrize("chapter", FAILURES)
def test_a_deliberate_failure_teaches_the_same_with_nccl(chapter):
    """On a node of eight GPUs it fails as without them, and asks NCCL for nothing that NCCL leaves undefined."""
    assigned, words = FAILURES[chapter]
    (path,) = notebooks.notebook_paths([chapter])
    cells = [each.source for each in notebooks.read(path).cells if "raises-exception" in each.metadata.get("tags", [])]
    names = names_of(chapter, assigned) | {"launch": functools.partial(on_machine, 8)}
    patient = re.sub(r"\btimeout=\d+", "timeout=8", cells[0])  # the ranks must get there on a busy machine, too
    with pytest.raises(WorkerError, match=words):
        exec(compile(patient, f"chapter {chapter}", "exec"), names)


def test_no_deliberate_failure_is_left_to_nccl_unseen():
    """A cell that fails on purpose, with workers that may get NCCL, is played above."""
    found = set()
    for path in notebooks.notebook_paths():
        for cell in notebooks.read(path).cells:
            fails = "raises-exception" in cell.metadata.get("tags", [])
            has_group = "launch(" in cell.source and "world_size=1)" not in cell.source
            if fails and has_group and 'backend="gloo"' not in cell.source:
                found.add(path.stem[:2])
    assert found | {"10"} == set(FAILURES)  # 10 names gloo, and is played to show that it must not be left out


@pytest.mark.parametrize(("machine", "on_gpus"), [("H200", False), ("8 A100", True)])
def test_one_gpu_is_not_compared_with_cores(machine, on_gpus):
    """One stage on the GPU and two on cores would be: one rank has NCCL on a machine with one GPU, and two have not."""
    with PlayedGpus(machine):
        names = names_of("12", "ON_GPUS large images labels")
        assert names["ON_GPUS"] == on_gpus
        # A GPU computes layers of the cores' width in less time than the messages between stages take.
        assert names["images"].shape == (1437, 4096 if on_gpus else 1024)
