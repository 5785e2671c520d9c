"""Launching from a notebook in any state, from threads, from several notebooks at once, and hundreds of times."""

import itertools
import os
import re
from pathlib import Path

import psutil
import pytest

from tests.helpers.kernel import wait_until

USE_EVERYTHING = """
torch.set_num_threads(2)
(torch.ones(500, 500) @ torch.ones(500, 500)).sum()  # OpenMP's threads
x = torch.ones(100, 100, requires_grad=True)
(x @ x).sum().backward()  # autograd's threads
loader = torch.utils.data.DataLoader(torch.arange(8.0), num_workers=1)
assert sum(loader) == 28
"""
ONE_STEP = """
def one_step():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    total = torch.ones(1)
    dist.all_reduce(total)
    return int(total)
"""


@pytest.mark.parametrize("world_size", [2, 4])
def test_after_the_notebook_used_openmp_autograd_and_processes(notebook, world_size):
    notebook.run(USE_EVERYTHING + ONE_STEP)
    value = notebook.run(f"launch(one_step, world_size={world_size}).results").value
    assert value == [world_size] * world_size


@pytest.mark.parametrize("world_size", [2, 4])
def test_while_the_notebook_has_a_process_group_of_its_own(notebook, world_size):
    notebook.run("""
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
os.environ.update(RANK="7", WORLD_SIZE="8", MASTER_ADDR="nowhere", MASTER_PORT="1")
""")
    try:
        notebook.run(ONE_STEP)
        assert notebook.run(f"launch(one_step, world_size={world_size}).results").value == [world_size] * world_size
        assert notebook.run("dist.get_rank(), dist.get_world_size(), os.environ['RANK']").value == (0, 1, "7")
    finally:
        notebook.run("""
dist.destroy_process_group()
for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"): del os.environ[name]
""")


@pytest.mark.gpu
def test_after_the_notebook_used_cuda(new_notebook):
    notebook = new_notebook()
    if not notebook.run("torch.cuda.is_available()").value:
        pytest.skip("no GPU here")
    notebook.run("kept = torch.ones(1000, device='cuda').sum().item()")  # its context stays, with all its descriptors
    notebook.run("""
def worker():
    from course_utils import rank_device
    x = torch.ones(3, device=rank_device())
    dist.all_reduce(x)
    return x.device.type, x  # arrives on the CPU
""")
    for world_size in (2, 4):
        with notebook.leaving_nothing():
            value = notebook.run(
                f"[(k, x.tolist(), x.device.type) for k, x in launch(worker, world_size={world_size}, timeout=60)]"
            ).value
        assert value == [("cuda", [float(world_size)] * 3, "cpu")] * world_size


def test_from_a_thread(notebook):
    assert notebook.run(
        """
def rank(): return dist.get_rank()
results = []
thread = threading.Thread(target=lambda: results.append(launch(rank, world_size=2).results))
thread.start(); thread.join()
results
""".strip()
    ).value == [[0, 1]]


def test_from_two_threads_at_once(notebook):
    """One after the other: their workers are never there together."""
    value = notebook.run(
        """
def worker():
    begun = time.monotonic()
    dist.barrier()
    deadline = begun + 0.2
    while time.monotonic() < deadline: pass
    return begun, time.monotonic()
runs = []
threads = [threading.Thread(target=lambda: runs.append(launch(worker, world_size=2).results)) for _ in range(3)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
[(min(r[0] for r in run), max(r[1] for r in run)) for run in runs]
""".strip()
    ).value
    assert len(value) == 3
    spans = sorted(value)
    assert all(earlier[1] < later[0] for earlier, later in itertools.pairwise(spans))


def test_an_interrupt_ends_the_wait_for_another_thread(notebook):
    notebook.run(
        """
go_on = threading.Event()
def wait_for_file():
    while not os.path.exists("go on"): time.sleep(0.01)
thread = threading.Thread(target=lambda: launch(wait_for_file, world_size=2))
thread.start()
""".strip()
    )
    wait_until(lambda: len(notebook.workers()) >= 2, "the thread's workers start")
    message_id = notebook.start("print('waiting')\nlaunch(nothing, world_size=2)")
    outcome = notebook.wait(message_id, 10, lambda text: notebook.interrupt())
    assert outcome.error == "Interrupted"
    (notebook.directory / "go on").touch()
    notebook.run("thread.join()\nos.remove('go on')\nlaunch(nothing, world_size=2)")


def test_two_notebooks_at_the_same_moment(notebook, seen_notebook):
    notebooks = (notebook, seen_notebook)
    source = """
def meet(name, i):
    total = torch.tensor([1.0])
    dist.all_reduce(total)
    return int(total), name, i
def launch_together(name, other):
    for i in range(20):
        open(f"{name} {i}", "w").close()
        while not os.path.exists(f"{other} {i}"): pass
        assert launch(meet, name, i, world_size=2).results == [(2, name, i)] * 2
"""
    with seen_notebook.leaving_nothing():
        for each in notebooks:
            each.run(source)
        names = [str(each.directory / "at") for each in notebooks]
        sent = [each.start(f"launch_together({names[i]!r}, {names[1 - i]!r})") for i, each in enumerate(notebooks)]
        for each, message_id in zip(notebooks, sent, strict=True):
            outcome = each.wait(message_id)
            assert not outcome.error, outcome.shown


def wait_until_gathered(notebook):
    """Until the forkserver, which has made workers enough, has gathered its memory: it does not sleep before."""
    (forkserver,) = notebook.forkservers()
    wait_until(lambda: forkserver.status() == psutil.STATUS_SLEEPING, "the forkserver has gathered its memory")
    return forkserver


def test_a_hundred_launches_leave_no_more_than_twenty(notebook):
    notebook.run(
        """
import psutil
def worker():
    log(loss=1.0); print("hello")
    x = torch.ones(1000); dist.all_reduce(x)
    return x
def size():
    me = psutil.Process()
    (forkserver,) = me.children()
    return [value for each in (me, forkserver)
            for value in (each.num_fds(), each.num_threads(), each.memory_info().rss / 2**20)]
def times(n):
    for _ in range(n): launch(worker, world_size=2)
""".strip()
    )
    notebook.wait_until_warm()  # a forkserver that takes over has other descriptors
    notebook.run("times(20)")
    wait_until_gathered(notebook)
    before = notebook.run("size()").value
    shared_memory = notebook.files()
    notebook.run("times(80)")
    after = notebook.run("size()").value
    for index in (1, 3, 4):  # descriptors and threads; the fixture compares the kernel's descriptors
        assert after[index] <= before[index], (before, after)
    for index in (2, 5):  # memory
        assert after[index] <= before[index] * 1.02, (before, after)
    assert notebook.files() == shared_memory


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
LINUX = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))


@pytest.mark.skipif(
    LINUX < (6, 1) or not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(),
    reason="this kernel gathers no memory into huge pages",
)
def test_after_many_workers_the_forkserver_has_gathered_its_memory(notebook):
    notebook.wait_until_warm()
    notebook.run("for _ in range(20): launch(nothing, world_size=2)")
    told = Path(f"/proc/{wait_until_gathered(notebook).pid}/smaps_rollup").read_text()
    assert int(re.search(r"AnonHugePages: +(\d+)", told)[1]) > 50 * 1024  # KiB
    assert notebook.run("launch(lambda: dist.get_rank(), world_size=2).results").value == [0, 1]
