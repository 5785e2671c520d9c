"""`on=Nodes(2)`: two torchrun agents on this machine, whose ranks behave as a launch's own do."""

import os
import re
import signal
import subprocess
import tempfile

import pytest

from tests.helpers.kernel import wait_until

# Where a rank is, in torchrun's variables, and a sum over all of them.
PLACE = """
from course_utils.launch import Nodes

def place(scale):
    total = torch.full((), float(dist.get_rank())) * scale
    dist.all_reduce(total)
    names = "RANK LOCAL_RANK GROUP_RANK WORLD_SIZE LOCAL_WORLD_SIZE".split()
    print("rank", os.environ["RANK"], "is here")
    log(loss=total)
    return [int(os.environ[name]) for name in names], total.item(), os.getppid()
"""


@pytest.fixture
def notebook(notebook):
    notebook.run("from course_utils.launch import Nodes")
    return notebook


def test_ranks_are_numbered_as_on_two_machines(notebook):
    notebook.run(PLACE)
    outcome = notebook.run("run = launch(place, 10, world_size=4, on=Nodes(2)); run.results")
    places, totals, parents = zip(*outcome.value)
    assert list(places) == [[0, 0, 0, 4, 2], [1, 1, 0, 4, 2], [2, 0, 1, 4, 2], [3, 1, 1, 4, 2]]
    assert totals == (60,) * 4 and len(set(parents)) == 4
    assert "2 nodes on this machine, a torchrun agent each" in notebook.run("run.placement.note").value
    assert all(f"[rank {rank}] rank {rank} is here" in outcome.stdout for rank in range(4))
    assert notebook.run("run.logs").value == [f"rank {rank} is here\n" for rank in range(4)]
    logged = notebook.run("run.metrics.sort_values('rank')[['rank', 'loss']].values.tolist()").value
    assert logged == [[rank, 60] for rank in range(4)]
    assert 0 < notebook.run("float(run.metrics.seconds.max())").value < notebook.run("run.seconds").value


def test_nothing_listens_beyond_loopback(notebook):
    notebook.run("def stay():\n    print('begun', flush=True)\n    time.sleep(60)")
    found = []

    def look(text):
        found.extend(["begun"] * text.count("] begun"))
        if found == ["begun"] * 4:
            found.append(notebook.listening())
            notebook.interrupt()

    notebook.wait(notebook.start("launch(stay, world_size=4, on=Nodes(2))"), on_output=look)
    kernels_own = {port for _, port in notebook.listening()}
    others = {address for address, port in found[-1] if port not in kernels_own}
    assert others and all(address.startswith("127.") or address == "::1" for address in others)


def test_the_rank_that_raised_is_shown_first(notebook):
    notebook.run("def fail():\n    if dist.get_rank() == 2: raise ValueError('no such file')\n    dist.barrier()")
    outcome = notebook.fail("launch(fail, world_size=4, on=Nodes(2))")
    assert outcome.shown.startswith("WorkerError: rank 2: ValueError: no such file\n  at Cell In[")
    assert re.search(r"ranks 0, 1 and 3 were in barrier at Cell In\[\d+\], line 3, in fail:", outcome.shown)


@pytest.mark.parametrize(("number", "words"), [("SIGSEGV", "segmentation fault"), ("SIGKILL", "killed (SIGKILL)")])
def test_a_rank_that_dies_is_named(notebook, number, words):
    notebook.run(f"def die():\n    if dist.get_rank() == 3: os.kill(os.getpid(), signal.{number})\n    dist.barrier()")
    outcome = notebook.fail("launch(die, world_size=4, on=Nodes(2))")
    assert outcome.shown.startswith("WorkerError: rank 3: ") and words in outcome.shown


def test_time_is_up(notebook):
    notebook.run("def hang():\n    if dist.get_rank(): dist.barrier()\n    else: time.sleep(60)")
    outcome = notebook.fail("launch(hang, world_size=4, on=Nodes(2), timeout=1)")
    assert outcome.shown.startswith("WorkerError: no end after 1 s, so all workers were stopped")
    assert re.search(r"rank 0 was at Cell In\[\d+\], line 3, in hang:", outcome.shown)
    assert "ranks 1–3 were in barrier at" in outcome.shown


def test_the_kernels_death_ends_agents_and_ranks(new_notebook):
    notebook = new_notebook(setup="import subprocess, time\nfrom course_utils import Nodes, launch")
    notebook.run("def stay():\n    subprocess.Popen(['sleep', '1000'])\n    time.sleep(60)")
    notebook.start("launch(stay, world_size=4, on=Nodes(2))")
    wait_until(lambda: len(notebook.sleepers()) == 4, "all ranks run")
    notebook.kill()
    wait_until(lambda: not notebook.processes(), "all processes have ended")
    assert not [name for name in notebook.files() if "course-run-" in name]


def test_a_moment_in_which_nothing_can_be_written_ends_nothing(notebook):
    """Neither a full disk nor, as here, a name that is taken: the next sign of life comes through."""
    assert (
        notebook.run("""
import pathlib, tempfile
def take_the_name():
    if dist.get_rank() == 0:
        (alive,) = pathlib.Path(tempfile.gettempdir()).glob("**/course-run-*/alive")
        alive.unlink()
        alive.mkdir()
        time.sleep(3)
        alive.rmdir()
        while not alive.exists(): time.sleep(0.05)
    return "went on"
launch(take_the_name, world_size=2, on=Nodes(2)).results
""").value
        == ["went on"] * 2
    )


@pytest.fixture
def small_disk():
    """`small_disk(files)` is a folder on a disk that takes so many files; its path has room for sockets."""
    mounted = []

    def make(files):
        folder = tempfile.mkdtemp(prefix="of ", dir="/tmp")
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"nr_inodes={files}", "tmpfs", folder], check=False)
        if done.returncode:
            os.rmdir(folder)
            pytest.skip("needs the right to mount a disk")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "--lazy", folder], check=True)
        os.rmdir(folder)


@pytest.mark.parametrize("files", [2, 6, 14, 16, 17, 20, 22])
def test_a_disk_that_takes_no_further_file_is_named(notebook, small_disk, files):
    """Wherever it strikes: as the launch is written down, in an agent, in a rank, as a rank's end is written down."""
    notebook.run(f"import tempfile\nbefore, tempfile.tempdir = tempfile.tempdir, {str(small_disk(files))!r}")
    try:
        outcome = notebook.fail("launch(nothing, world_size=2, on=Nodes(2))")
        assert outcome.error in ("LauncherError", "WorkerError"), outcome.shown
        shown = " ".join(outcome.shown.split())  # it is wrapped at 100 characters
        assert "No space left on device" in shown or "no inodes left (df -i shows it)" in shown
    finally:
        notebook.run("tempfile.tempdir = before")


def test_an_agent_that_is_killed_is_named(notebook):
    notebook.run("def stay():\n    print('begun', flush=True)\n    time.sleep(60)")
    begun = []

    def kill_agent(text):
        begun.extend(["begun"] * text.count("] begun"))
        if len(begun) == 4:
            begun.append(None)
            agent = next(process for process in notebook.workers() if process.name() == "agent 1")
            os.kill(agent.pid, signal.SIGKILL)

    outcome = notebook.wait(notebook.start("launch(stay, world_size=4, on=Nodes(2))"), on_output=kill_agent)
    assert outcome.shown.startswith("WorkerError: the agent of node 1 of 2: killed (SIGKILL) by another process")
    assert "ranks 0 and 1 were at Cell In[" in outcome.shown


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            "launch(print, world_size=3, on=Nodes(2))",
            "ValueError",
            "world_size is 3, which 2 nodes cannot share equally",
        ),
        ("launch(print, on=2)", "TypeError", "on is None for this machine, Nodes(…) or Slurm(…), not 2"),
        ("Nodes(0)", "ValueError", "the number of nodes is a whole number, 1 or more, not 0"),
        ("launch(print, on=Nodes(2), backend='mpi')", "ValueError", "choose 'auto', 'gloo', 'nccl' or None"),
    ],
)
def test_arguments_that_cannot_be_right(notebook, call, error, words):
    outcome = notebook.fail(call)
    assert outcome.error == error and words in outcome.message
