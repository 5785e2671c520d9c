"""`on=Slurm(…)`: a function of a cell as a job of a real cluster, which runs on this machine's loopback."""

import contextlib
import re
import threading

import pytest

from tests.helpers.kernel import sharing_elsewhere, wait_until

PLACE = """
def place(scale):
    total = torch.full((), float(dist.get_rank())) * scale
    dist.all_reduce(total)
    print("rank", os.environ["RANK"], "is here")
    log(loss=total)
    return [int(os.environ[n]) for n in "RANK LOCAL_RANK GROUP_RANK WORLD_SIZE LOCAL_WORLD_SIZE".split()], total.item()
"""
STAY = "def stay():\n    print('begun', flush=True)\n    time.sleep(600)"


@pytest.fixture
def notebook(notebook, slurm):
    """The shared notebook on a cluster."""
    with on_cluster(notebook, slurm):
        yield notebook


@contextlib.contextmanager
def on_cluster(notebook, slurm):
    """Has the notebook on a cluster: its home is its folder, which all nodes see.

    The test leaves no job in the queue, no process of one, and nothing in the folder of runs.
    """
    variables = {name: slurm.env[name] for name in ("SLURM_CONF", "PATH")} | {"HOME": str(notebook.directory)}
    with set_there(notebook, variables):
        notebook.run("from course_utils.launch import Slurm\ntwo = Slurm(nodes=2, workers_per_node=2)")
        yield

        def is_clear():
            return not slurm.run("squeue", "--noheader").stdout and not runs(notebook)

        wait_until(is_clear, "the queue and the folder are empty")


@contextlib.contextmanager
def set_there(notebook, variables):
    """Environment variables of the notebook, for a while."""
    before = notebook.run(f"_before = dict(os.environ)\nos.environ.update({variables})\n_before").value
    try:
        yield
    finally:
        names = list(variables)
        usual = {name: before[name] for name in names if name in before}
        notebook.run(f"for name in {names}: os.environ.pop(name, None)\nos.environ.update({usual})")


def runs(notebook):
    folder = notebook.directory / ".cache" / "course_utils"
    return list(folder.iterdir()) if folder.exists() else []


def job_of(outcome):
    return re.search(r"Slurm job (\d+): ", outcome.stdout)[1]


def when_all_have_begun(notebook, call, then):
    """Run the cell `call`, which launches `stay`, and call `then(job)` once its four ranks run."""
    seen = []

    def look(text):
        seen.append(text)
        if "".join(seen).count("] begun") == 4 and None not in seen:
            job = re.search(r"Slurm job (\d+): ", "".join(seen))[1]
            seen.clear()
            then(job)

    notebook.run(STAY)
    return notebook.wait(notebook.start(call), 90, look)


def test_results_logs_and_metrics_come_back(notebook, slurm):
    notebook.run(PLACE)
    outcome = notebook.run("run = launch(place, 10, on=two); run.results")
    assert outcome.value == [([0, 0, 0, 4, 2], 60), ([1, 1, 0, 4, 2], 60), ([2, 0, 1, 4, 2], 60), ([3, 1, 1, 4, 2], 60)]
    assert all(f"[rank {rank}] rank {rank} is here" in outcome.stdout for rank in range(4))
    assert re.search(r"Slurm job \d+: running on n\[1-2\]", outcome.stdout)
    assert notebook.run("run.metrics.loss.tolist()").value == [60] * 4
    assert slurm.wait(job_of(outcome)) == "COMPLETED"  # and not cancelled


def test_a_ranks_own_line(notebook):
    notebook.run("def fail():\n    if dist.get_rank() == 2: raise ValueError('no such file')\n    dist.barrier()")
    outcome = notebook.fail("launch(fail, on=two)")
    assert outcome.shown.startswith("WorkerError: rank 2: ValueError: no such file\n  at Cell In[")
    assert re.search(r"ranks 0, 1 and 3 were in barrier at Cell In\[\d+\], line 3, in fail:", outcome.shown)


def test_a_rank_that_dies(notebook):
    notebook.run("def die():\n    if dist.get_rank() == 3: os.kill(os.getpid(), signal.SIGKILL)\n    dist.barrier()")
    outcome = notebook.fail("launch(die, on=two)")
    assert outcome.shown.startswith("WorkerError: rank 3: killed (SIGKILL)")


def test_interrupting_the_cell_cancels_the_job(notebook, slurm):
    jobs = []
    outcome = when_all_have_begun(
        notebook, "launch(stay, on=two)", lambda job: (jobs.append(job), notebook.interrupt())
    )
    assert outcome.error == "Interrupted"
    assert "ranks 0–3 were at Cell In[" in outcome.shown
    assert slurm.wait(jobs[0]) == "CANCELLED"


def test_a_job_that_somebody_else_cancels(notebook, slurm):
    outcome = when_all_have_begun(notebook, "launch(stay, on=two)", lambda job: slurm.run("scancel", job))
    assert re.match(r"WorkerError: Slurm job \d+ was cancelled by somebody else\n", outcome.shown)


def test_a_job_that_cannot_get_what_it_asks_for(notebook):
    outcome = notebook.fail("launch(print, on=Slurm(nodes=2, workers_per_node=2, partition='nowhere'))")
    assert outcome.error == "LauncherError"
    assert outcome.message.startswith("Slurm did not take the job: invalid partition specified: nowhere")
    outcome = notebook.fail("launch(print, on=Slurm(nodes=9, workers_per_node=2))")
    assert outcome.error == "LauncherError" and "would never start" in outcome.message


def test_sbatch_without_a_cluster(notebook, tmp_path):
    (tmp_path / "slurm.conf").touch()  # for one that is not there sbatch waits for a minute
    with set_there(notebook, {"SLURM_CONF": str(tmp_path / "slurm.conf")}):
        outcome = notebook.fail("launch(print, on=two)")
    assert outcome.error == "LauncherError" and not outcome.stderr
    assert "run the notebook on a login node" in outcome.message.partition("\n")[0]
    assert outcome.message.count("ClusterName needs to be specified") == 1


def test_the_panel_says_what_is_known_of_a_job_once_and_draws_no_memory(seen_notebook, slurm, tmp_path):
    blocker = tmp_path / "job.sbatch"
    blocker.write_text("#!/bin/bash\n#SBATCH --nodes=2 --exclusive\nsleep 600\n")
    with on_cluster(seen_notebook, slurm):
        job = slurm.submit(blocker, tmp_path)
        wait_until(lambda: slurm.state(job) == "RUNNING", "the other job runs")
        seen_notebook.run("def work():\n    for step in range(80): time.sleep(0.05); log(loss=1 / (1 + step))")
        started = seen_notebook.start("launch(work, on=two)\nNone")
        threading.Timer(3.0, lambda: slurm.run("scancel", job)).start()
        outcome = seen_notebook.wait(started, 90)
    told = [text for text in (*outcome.values, *outcome.updates) if text.startswith("Slurm job")]
    assert re.fullmatch(r"Slurm job \d+: pending.*", told[0]) and "Slurm job" not in outcome.stdout
    assert re.fullmatch(r"Slurm job \d+: running on n\[1-2\]", told[-1])
    assert sum(text.startswith("Slurm job") for text in outcome.values) == 1, "the others replace it"
    images = [alt for _, html in outcome.moved for alt in re.findall('<img alt="([^"]*)"', html)]
    assert images and not any("memory" in alt for alt in images)


def test_a_folder_that_nodes_do_not_see(notebook, slurm, tmp_path):
    """Nodes that see another folder under this name are played by its removal before the job begins."""
    blocker = tmp_path / "job.sbatch"
    blocker.write_text("#!/bin/bash\n#SBATCH --nodes=2 --exclusive\nsleep 600\n")
    job = slurm.submit(blocker, tmp_path)
    wait_until(lambda: slurm.state(job) == "RUNNING", "the other job runs")
    seen = []

    def remove(text):
        seen.append(text)
        if "pending" in text:
            folder = runs(notebook)[0]
            folder.rename(tmp_path / "elsewhere")
            slurm.run("scancel", job)

    outcome = notebook.wait(notebook.start("launch(print, on=two)"), 60, remove)
    assert outcome.error == "LauncherError", outcome.shown
    assert "do the compute nodes see the folder" in outcome.message


def test_a_job_takes_nothing_of_a_shared_node_where_the_notebook_runs(notebook, slurm, tmp_path):
    """Neither does the job wait for a turn there, nor anybody for a job in the queue, whose ranks do not run yet."""
    tmp_path.chmod(0o1777)
    shared = {"COURSE_SHARED": "1", "COURSE_LOCKS": str(tmp_path)}
    notebook.run(STAY)
    blocker = tmp_path / "job.sbatch"
    blocker.write_text("#!/bin/bash\n#SBATCH --nodes=2 --exclusive\nsleep 600\n")
    with set_there(notebook, shared):
        with sharing_elsewhere(tmp_path):
            job = slurm.submit(blocker, tmp_path)
            wait_until(lambda: slurm.state(job) == "RUNNING", "the other job runs")
            tickets = []

            def interrupt(text):
                tickets.append(len(list(tmp_path.glob("course-ticket-*"))))
                notebook.interrupt()

            outcome = notebook.wait(notebook.start("launch(stay, on=two)"), 60, interrupt)
            assert "pending" in outcome.stdout and "waiting" not in outcome.stdout
            assert set(tickets) == {1}  # the holder's
            assert outcome.error == "Interrupted"
            assert "stay was interrupted before ranks 0–3 had begun" in outcome.shown and "running" not in outcome.shown
            slurm.run("scancel", job)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("Slurm(nodes=0, workers_per_node=2)", "Slurm(nodes=…) is a whole number, 1 or more, not 0"),
        ("Slurm(nodes=2)", "needs gpus_per_node, a worker for each, or workers_per_node"),
        ("Slurm(nodes=2, workers_per_node=2, time='1h')", "Slurm(time=…) is a number of minutes above 0, not '1h'"),
        ("launch(print, on=two, world_size=3)", "world_size is 3, but 2 × 2 workers are 4: leave world_size out"),
    ],
)
def test_arguments_that_cannot_be_right(notebook, call, words):
    outcome = notebook.fail(call)
    assert outcome.error == "ValueError" and words in outcome.message
