"""`Ranks(on=Slurm(…))`: ranks in a job of a real cluster, kept from cell to cell."""

import re
import statistics
import time

import pytest

from tests.helpers.kernel import wait_until
from tests.launch.test_slurm_jobs import notebook, runs  # noqa: F401  on a cluster, and nothing may be left of it

TWO_NODES = "ranks = Ranks(on=two)"


def job_of(outcome):
    return re.search(r"Slurm job (\d+): ", outcome.stdout)[1]


@pytest.fixture
def opened(notebook):  # noqa: F811
    """The cell that starts four ranks on two nodes."""
    notebook.run("from course_utils import Ranks")
    yield notebook.run(TWO_NODES)
    notebook.run("ranks.close()")


def test_variables_and_the_group_last_from_cell_to_cell(notebook, opened, slurm):  # noqa: F811
    assert notebook.run("len(ranks), ranks.placement.device_type").value == (4, "cpu")
    notebook.run("%%ranks\nmodel = torch.full((3,), float(rank))\nprint('mine is', rank)")
    assert notebook.run("[m.tolist() for m in ranks['model']]").value == [[float(rank)] * 3 for rank in range(4)]
    notebook.run("%%ranks\ndist.all_reduce(model)")
    assert notebook.run("ranks['model.sum().item()']").value == [18.0] * 4
    notebook.run("ranks['scale'] = torch.arange(4)")
    assert notebook.run("ranks['(scale * 10).tolist()']").value == [[0, 10, 20, 30]] * 4
    notebook.run("def scaled(tensor, by):\n    return (tensor * by).tolist()")
    assert notebook.run("ranks.run(scaled, torch.arange(2), by=3)").value == [[0, 3]] * 4
    notebook.run("%%ranks\nimport os\nnode = os.environ['GROUP_RANK']")
    assert notebook.run("ranks['node']").value == ["0", "0", "1", "1"]
    job = job_of(opened)
    assert slurm.state(job) == "RUNNING"
    notebook.run("ranks.close()")
    assert slurm.wait(job) == "CANCELLED"
    assert notebook.fail("ranks.run(print)").shown.startswith("RanksError: these ranks have ended")


def test_what_is_printed_comes_back(notebook, opened):  # noqa: F811
    outcome = notebook.run("def say():\n    print('rank', dist.get_rank(), 'speaks')\nranks.run(say)")
    assert all(f"[rank {rank}] rank {rank} speaks" in outcome.stdout for rank in range(4))
    assert notebook.run("ranks.logs").value == [f"rank {rank} speaks\n" for rank in range(4)]


def test_a_failure_leaves_the_variables(notebook, opened):  # noqa: F811
    notebook.run("%%ranks\nkept = rank")
    outcome = notebook.fail("%%ranks\nif rank == 2:\n    raise ValueError('no such file')")
    assert outcome.shown.startswith("WorkerError: rank 2: ValueError: no such file\n  at Cell In[")
    assert "anew" not in outcome.shown
    assert notebook.run("ranks['kept']").value == [0, 1, 2, 3]


def test_ranks_that_wait_for_a_failed_one_are_started_anew_in_the_same_job(notebook, opened, slurm):  # noqa: F811
    notebook.run("%%ranks\nkept = rank")
    outcome = notebook.fail("%%ranks\nif rank == 2:\n    raise ValueError('no such file')\ndist.barrier()")
    assert outcome.shown.startswith("WorkerError: rank 2: ValueError: no such file\n  at Cell In[")
    assert "All ranks have been started anew in the same job, and their variables are gone." in outcome.shown
    assert re.search(r"ranks 0, 1 and 3 were in barrier at Cell In\[\d+\], line 4", outcome.shown)
    outcome = notebook.run("%%ranks\ntotal = torch.ones(())\ndist.all_reduce(total)\ntotal.item()")
    assert "pending" not in outcome.stdout and slurm.state(job_of(opened)) == "RUNNING"
    assert notebook.run("ranks['total.item()']").value == [4.0] * 4
    assert "name 'kept' is not defined" in notebook.fail("ranks['kept']").message


def test_a_rank_that_dies_is_started_anew(notebook, opened):  # noqa: F811
    outcome = notebook.fail("%%ranks\nif rank == 3:\n    import os\n    os.kill(os.getpid(), 9)\ndist.barrier()")
    assert "rank 3: killed (SIGKILL)" in outcome.shown and "started anew" in outcome.shown
    assert notebook.run("ranks['rank']").value == [0, 1, 2, 3]


def test_an_interrupt_stops_the_request_and_keeps_the_ranks(notebook, opened):  # noqa: F811
    notebook.run("%%ranks\nkept = rank")

    def interrupt(text):
        if "begun" in text:
            notebook.interrupt()

    cell = "def stay():\n    print('begun', flush=True)\n    time.sleep(600)\nranks.run(stay)"
    outcome = notebook.wait(notebook.start(cell), 60, interrupt)
    assert outcome.error == "Interrupted" and "line 3, in stay" in outcome.shown
    assert notebook.run("ranks['kept']").value == [0, 1, 2, 3]


def test_a_timeout_says_where_ranks_were(notebook, opened):  # noqa: F811
    notebook.run("ranks.timeout = 1.5")
    outcome = notebook.fail("%%ranks\nif rank == 0:\n    dist.barrier()\nelse:\n    import time\n    time.sleep(600)")
    assert "rank 0 was in barrier at Cell In[" in outcome.shown
    assert "ranks 1–3 were at Cell In[" in outcome.shown


def test_slurms_warning_of_the_jobs_end_ends_nothing_yet(notebook, opened, slurm):  # noqa: F811
    slurm.run("scancel", "--signal=USR2", job_of(opened))
    notebook.fail("%%ranks\nimport os\nif rank == 3:\n    os.kill(os.getpid(), 9)")  # what starts it anew still lives
    assert notebook.run("ranks['rank']").value == [0, 1, 2, 3]


def test_a_job_that_somebody_else_cancels(notebook, opened, slurm):  # noqa: F811
    job = job_of(opened)
    slurm.run("scancel", job)
    slurm.wait(job)
    outcome = notebook.fail("ranks['rank']")
    assert outcome.error == "LauncherError"
    assert outcome.message.startswith(f"Slurm job {job} was cancelled by somebody else\nThese ranks have ended with it")
    assert notebook.fail("ranks['rank']").error == "RanksError"


def test_a_node_that_is_lost(notebook, opened, slurm):  # noqa: F811
    try:
        slurm.run("scontrol", "update", "nodename=n2", "state=down", "reason=test")
        slurm.wait(job_of(opened))
        outcome = notebook.fail("ranks['rank']")
        assert outcome.error == "LauncherError" and "lost a node" in outcome.message
    finally:
        slurm.run("scontrol", "update", "nodename=n2", "state=resume")


def test_an_agent_that_is_killed_ends_the_job(notebook, opened, slurm):  # noqa: F811
    """Its ranks end with it, and nobody would answer for them."""
    found = [process for process in slurm.processes(job_of(opened)) if "submitit" in " ".join(process.cmdline())]
    tasks = [process for process in found if process.parent().name() == "slurmstepd"]
    next(task for task in tasks if task.environ().get("SLURM_NODEID") == "1").kill()
    slurm.wait(job_of(opened))
    outcome = notebook.fail("ranks['rank']")
    assert outcome.error == "LauncherError" and f"Slurm job {job_of(opened)}" in outcome.message


def test_the_kernels_death_ends_the_job(new_notebook, slurm):
    """Killed outright, it can cancel nothing itself."""
    there = {name: slurm.env[name] for name in ("SLURM_CONF", "PATH")}
    setup = "import os\nfrom course_utils import Ranks\nfrom course_utils.launch import Slurm"
    doomed = new_notebook(setup=setup, **there)
    doomed.run("os.environ['HOME'] = os.getcwd()")
    job = job_of(doomed.run("ranks = Ranks(on=Slurm(nodes=2, workers_per_node=2))"))
    doomed.kill()
    assert slurm.wait(job) == "CANCELLED"
    wait_until(lambda: not runs(doomed), "the folder has gone")
    wait_until(lambda: {p.pid for p in doomed.processes()} <= {doomed.pid}, "nothing of the kernel is left")


def test_an_interrupt_while_the_job_is_queued_takes_it_out_of_the_queue(notebook, slurm, tmp_path):  # noqa: F811
    blocker = tmp_path / "job.sbatch"
    blocker.write_text("#!/bin/bash\n#SBATCH --nodes=2 --exclusive\nsleep 600\n")
    other = slurm.submit(blocker, tmp_path)
    wait_until(lambda: slurm.state(other) == "RUNNING", "the other job runs")
    notebook.run("from course_utils import Ranks")
    outcome = notebook.wait(notebook.start(TWO_NODES), 60, lambda text: "pending" in text and notebook.interrupt())
    assert outcome.error == "Interrupted", outcome.shown
    slurm.run("scancel", other)  # the fixture finds the queue empty


def test_where_ranks_can_be(notebook):  # noqa: F811
    notebook.run("from course_utils import Ranks\nfrom course_utils.launch import Nodes")
    assert "takes Slurm(…), not Nodes(count=2)" in notebook.fail("Ranks(on=Nodes(2))").message
    assert "2 × 2 workers are 4" in notebook.fail("Ranks(3, on=two)").message


@pytest.mark.alone
def test_the_first_call_and_each_further_one_are_quick(notebook, slurm):  # noqa: F811
    """Five seconds after the job has begun, most of which it imports torch; then a tenth of a second."""
    notebook.run("from course_utils import Ranks")
    began = []
    outcome = notebook.wait(notebook.start(TWO_NODES), 60, lambda text: "running" in text and began.append(time.time()))
    assert not outcome.error and time.time() - began[0] < 5
    taken = notebook.run("""
def nothing(): pass
taken = []
for _ in range(21):
    begin = time.perf_counter()
    ranks.run(nothing)
    taken.append(time.perf_counter() - begin)
taken""").value
    assert statistics.median(taken) < 0.1
    notebook.run("ranks.close()")
