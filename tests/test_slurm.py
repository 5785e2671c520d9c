"""Batch files hold what they should, refuse what cannot run, and run on a Slurm that is really there."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from course_utils import slurm as batch
from course_utils.slurm import __main__ as command
from tests.helpers.slurm_cluster import MISSING, REASON, ROOT, cluster, environments, wait_until
from tests.helpers.slurm_guard import NODES

ON_CORES = {"gpus_per_node": 0, "workers_per_node": 2}
needs_slurm = pytest.mark.skipif(bool(MISSING), reason=REASON)

# arguments → nodes, GPUs of each, CPUs of each, and of what srun runs: its program's own options
CASES = {
    "dp --gpus-per-node 4": (1, 4, 16, "--strategy dp"),
    "ddp --gpus-per-node 4": (1, 4, 16, "--strategy ddp"),
    "ddp --nodes 2 --gpus-per-node 4 --cpus-per-task 8": (2, 4, 8, "--strategy ddp"),
    "ddp --nodes 2 --workers-per-node 3": (2, 0, 3, "--strategy ddp"),
    "fsdp --nodes 2": (2, 2, 8, "--strategy fsdp"),
    "hsdp --nodes 2 --gpus-per-node 4": (2, 4, 16, "--strategy fsdp --replicas 2"),
}


def written(arguments, capsys):
    """What the command prints for `arguments`, text or a list."""
    command.main(arguments.split() if isinstance(arguments, str) else arguments)
    return capsys.readouterr().out


def directives(text):
    """What sbatch reads: {option: value} of the lines above the first command."""
    head = text[: text.index("\nset -e")]
    return dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?(?:  +#.*)?$", head, flags=re.MULTILINE))


def run_as_node(text, folder):
    """Run a batch file with an srun that prints what it was given, one argument a line; return these."""
    (folder / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (folder / "srun").chmod(0o755)
    nodes, cpus = (directives(text)[name] for name in ("nodes", "cpus-per-task"))
    env = os.environ | {"SLURM_JOB_ID": "1234567", "SLURM_JOB_NAME": "name", "PATH": f"{folder}:{os.environ['PATH']}"}
    env |= {"SLURM_NNODES": nodes, "SLURM_CPUS_PER_TASK": cpus}
    done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.splitlines()


# What is written


@pytest.mark.parametrize("arguments, expected", CASES.items())
def test_a_file_asks_for_one_task_a_node_and_meets_on_the_first(arguments, expected, capsys, tmp_path):
    text = written(arguments, capsys)
    nodes, gpus, cpus, program = expected
    asked = directives(text)
    assert asked["nodes"] == str(nodes) and asked["ntasks-per-node"] == "1" and asked["cpus-per-task"] == str(cpus)
    assert asked.get("gpus-per-node") == (str(gpus) if gpus else None)  # without GPUs it asks for none, not for 0
    assert asked["time"] == "01:00:00" and asked["output"] == "%x-%j.out" and asked["job-name"] == arguments.split()[0]
    assert "requeue" in asked and "partition" not in asked and "account" not in asked
    given = run_as_node(text, tmp_path)
    assert given[:2] == [f"--cpus-per-task={cpus}", "--kill-on-bad-exit=1"]
    host = subprocess.check_output(["hostname"], text=True).strip()
    workers = gpus or 3
    started = ["python"] if arguments.startswith("dp") else [
        "torchrun", "--nnodes", str(nodes), "--nproc-per-node", str(workers), "--max-restarts", "3",
        "--rdzv-id", "1234567", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:24567",
        "--rdzv-conf", "join_timeout=300"]  # fmt: skip
    assert given[2:] == [
        *started,
        "-m",
        "course_utils.train",
        *program.split(),
        "--checkpoint",
        "checkpoints/name-1234567",
        "--resume",
        "auto",
    ]


def test_what_is_set_stands_in_the_file_and_what_is_not_is_switched_off(capsys):
    text = written("ddp --partition gpux8 --account course --name first --time 1-12:00:00", capsys)
    expected = {"partition": "gpux8", "account": "course", "job-name": "first", "time": "1-12:00:00"}
    assert expected.items() <= directives(text).items()
    assert re.findall(r"^##SBATCH --(\S+)", text, flags=re.MULTILINE) == ["mem=0"]
    text = written("ddp", capsys)
    assert re.findall(r"^##SBATCH --(\w+)", text, flags=re.MULTILINE) == ["partition", "account", "mem"]


def test_arguments_arrive_as_they_were_given(capsys, tmp_path):
    odd = ["--name", "two words", "$HOME", "it's"]
    assert run_as_node(written(["ddp", "--", *odd], capsys), tmp_path)[-4:] == odd
    program = tmp_path / "my train.py"
    program.touch()
    given = run_as_node(written(["ddp", "--program", str(program), "--", "--", *odd], capsys), tmp_path)
    assert given[-6:] == [str(program), "--", *odd] and "course_utils.train" not in given


def test_only_what_resumes_and_has_time_goes_back_into_the_queue(capsys, tmp_path):
    (tmp_path / "mine.py").touch()
    for arguments in (f"ddp --program {tmp_path}/mine.py", "ddp --time 00:04:59"):
        text = written(arguments, capsys)
        assert "requeue" not in text and "signal" not in directives(text) and "&\nwait" not in text
        assert ("--max-restarts" in text) == ("--program" not in arguments)


def test_a_program_of_ones_own_that_resumes_does_too(capsys, tmp_path):
    (tmp_path / "mine.py").touch()
    arguments = ["ddp", "--program", f"{tmp_path}/mine.py", "--resumes"]
    text = written([*arguments, "--", "folder"], capsys)
    assert {"requeue", "signal"} <= set(directives(text)) and "trap again USR1" in text and "&\nwait" in text
    given = run_as_node(text, tmp_path)
    assert given[-2:] == [f"{tmp_path}/mine.py", "folder"]
    assert given[given.index("--max-restarts") + 1] == "3"
    assert "requeue" not in written([*arguments, "--time", "00:04:59"], capsys)


def test_a_program_that_is_not_here_is_mentioned(capsys):
    command.main(["ddp", "--program", "nowhere.py"])
    said = capsys.readouterr()
    assert said.err == "slurm: nowhere.py is not here: the job looks for it in the folder where sbatch is run\n"
    assert said.out == str(batch.Job("ddp", program="nowhere.py"))


def test_the_command_prints_the_file(tmp_path):
    command = [sys.executable, "-m", "course_utils.slurm", "ddp", "--nodes", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr
    assert done.stdout == str(batch.Job("ddp", nodes=2))
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True).returncode == 0


@pytest.mark.parametrize(
    "arguments, words",
    {
        "": "required: strategy",
        "ddq": "no strategy 'ddq': choose one of dp, ddp, fsdp, hsdp",
        "dp --nodes 2": "DataParallel is one process, which cannot leave its node",
        "dp --gpus-per-node 0": "nothing to split a batch over",
        "hsdp": "nothing to replicate across",
        "ddp --nodes 0": "--nodes is 0, and it takes a whole number, 1 or more",
        "ddp --nodes two": "--nodes: 'two' is not a whole number",
        "ddp --gpus-per-node -1": "--gpus-per-node is -1",
        "ddp --gpus-per-node 2 --workers-per-node 2": "--workers-per-node is for jobs without GPUs",
        "ddp --gpus-per-node 4 --cpus-per-task 3": "ask for 4 CPUs or more",
        "ddp --time 3600": "--time is '3600': give hours, minutes and seconds",
        "ddp --time 00:00:00": "more than none",
        "ddp --time 00:60:00": "--time is '00:60:00'",
        "ddp --name a/b": "--name is 'a/b'",
        "ddp --partition a\n#SBATCH --nodes=99": "--partition is",
        "ddp --node 2": "unrecognized arguments: --node",
    }.items(),
)
def test_what_cannot_run_is_refused_in_one_sentence(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(arguments.split(" ") if arguments else [])
    said = capsys.readouterr()
    assert ended.value.code == 2 and not said.out
    assert words in said.err and said.err.startswith("slurm: ") and said.err.count("\n") == 1


# On a cluster

# Each rank says what it heard from all others.
GROUP = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([2 ** dist.get_rank()])
dist.all_reduce(total)
# all at once: the lines of two workers must not mix
sys.stdout.write(f"rank {dist.get_rank()} on {os.environ['SLURMD_NODENAME']} has {total.item()}\\n")
dist.destroy_process_group()
"""
# Each rank writes what it is. It is as hard to end as can be, and has a child in a session of its own.
STAY = """
import json, os, pathlib, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"], start_new_session=True)
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURMD_NODENAME", "OMP_NUM_THREADS")
file = pathlib.Path("new_" + os.environ["RANK"])
file.write_text(json.dumps({name: os.environ[name] for name in names}))
file.rename("rank_" + os.environ["RANK"])
time.sleep(600)
"""
# It stays until it has been started again.
TWICE = """
import os, pathlib, time
count = os.environ.get("SLURM_RESTART_COUNT", "0")
pathlib.Path(f"start_{count}").touch()
time.sleep(600 if count == "0" else 0)
"""


def hand_in(slurm, folder, text, program):
    """Write the program and a batch file to `folder` and hand it in; return the job's number."""
    (folder / "program.py").write_text(program)
    (folder / "job.sbatch").write_text(text)
    return slurm.submit("job.sbatch", folder)


@pytest.mark.parametrize("arguments", CASES)
def test_slurm_takes_every_file(slurm, arguments, capsys, tmp_path):
    (tmp_path / "job.sbatch").write_text(written(arguments, capsys))
    done = slurm.run("sbatch", "--test-only", "job.sbatch", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    nodes, _, cpus, _ = CASES[arguments]
    found = re.search(r"using (\d+) processors on nodes (\S+)", done.stderr)
    assert int(found[1]) == nodes * cpus and found[2] == ("n[1-2]" if nodes == 2 else "n1")


def test_two_nodes_form_one_group(slurm, tmp_path):
    """Of one worker each, since each imports torch; below there are two, which do not."""
    text = str(batch.Job("ddp", nodes=2, gpus_per_node=0, workers_per_node=1, program="program.py"))
    job = hand_in(slurm, tmp_path, text, GROUP)
    state = slurm.wait(job)
    printed = (tmp_path / f"ddp-{job}.out").read_text()
    assert state == "COMPLETED", printed
    found = sorted(re.findall(r"^rank (\d) on (n\d) has (\d)$", printed, flags=re.MULTILINE))
    assert [(rank, total) for rank, _, total in found] == [("0", "3"), ("1", "3")]
    assert {node for _, node, _ in found} == set(NODES)


def test_an_unknown_partition_is_refused_in_slurms_own_words(slurm, capsys, tmp_path):
    (tmp_path / "job.sbatch").write_text(written("ddp --partition gpux8", capsys))
    done = slurm.run("sbatch", "job.sbatch", cwd=tmp_path)
    assert done.returncode != 0 and "invalid partition specified: gpux8" in done.stderr


def test_scancel_ends_every_process_of_two_nodes_of_two_workers(slurm, tmp_path):
    text = str(batch.Job("ddp", nodes=2, **ON_CORES, cpus_per_task=4, program="program.py"))
    job = hand_in(slurm, tmp_path, text, STAY)
    wait_until(lambda: len(list(tmp_path.glob("rank_*"))) == 4, 120, "all four ranks have written")
    ranks = [json.loads((tmp_path / f"rank_{rank}").read_text()) for rank in range(4)]
    assert [found["RANK"] for found in ranks] == ["0", "1", "2", "3"]
    assert [found["LOCAL_RANK"] for found in ranks] == ["0", "1", "0", "1"]
    assert {found["WORLD_SIZE"] for found in ranks} == {"4"} and {found["OMP_NUM_THREADS"] for found in ranks} == {"2"}
    nodes = [found["SLURMD_NODENAME"] for found in ranks]
    assert nodes in (["n1", "n1", "n2", "n2"], ["n2", "n2", "n1", "n1"])
    names = [process.name() for process in slurm.processes(job)]
    # torchrun on each node, two workers of each, and what each worker has started; the file's own shell and srun
    # besides.
    assert names.count("sleep") == 4 and len(names) >= 4 + 4 + 2 + 2
    assert slurm.run("scancel", job).returncode == 0
    assert slurm.wait(job, timeout_s=100) == "CANCELLED"
    assert not slurm.processes(job)


def test_the_signal_before_the_end_puts_it_back_into_the_queue(slurm, tmp_path):
    # In the place of the course's program, which would take its time.
    text = str(batch.Job("dp")).replace("-m course_utils.train", "program.py")
    job = hand_in(slurm, tmp_path, text, TWICE)
    wait_until((tmp_path / "start_0").exists, 100, "the program has started")
    assert slurm.run("scancel", "--batch", "--signal=USR1", job).returncode == 0
    wait_until(
        lambda: slurm.state(job) == "PENDING" and not slurm.stepds(job),
        60,
        "the job waits again, and nothing of it runs",
    )
    # Its right to run was revoked, and one given in the same second does not count as a newer one.
    assert slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+2").returncode == 0
    assert slurm.wait(job) == "COMPLETED"
    assert (tmp_path / "start_1").exists()


def test_a_program_that_fails_fails_the_job_and_is_not_started_again(slurm, tmp_path):
    text = str(batch.Job("dp")).replace("-m course_utils.train", "program.py")
    job = hand_in(slurm, tmp_path, text, "print('begun')\nraise SystemExit(3)\n")
    assert slurm.wait(job) == "FAILED"
    printed = (tmp_path / f"dp-{job}.out").read_text()
    assert printed.count("begun") == 1 and "code 3" in printed


# The cluster itself


def left_behind(folder):
    """What is still there of a cluster: its processes, by their names, and its folder."""
    told = f"SLURM_CONF={folder}/slurm.conf"
    names = []
    for process, variables in environments():
        with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended since
            names += [process.name()] * (told in variables)
    return names + [str(folder)] * folder.exists()


@needs_slurm
def test_two_clusters_at_a_time_and_nothing_of_one_afterwards(slurm, tmp_path):
    (tmp_path / "job.sbatch").write_text("#!/bin/sh\nsleep 600 &\nsrun sleep 600\n")
    with cluster() as second:
        job = second.submit("job.sbatch", tmp_path)
        wait_until(lambda: len(second.processes(job)) >= 4, 100, "both of its programs run")
        assert left_behind(second.folder)
        assert slurm.run("squeue", "--noheader", "--jobs", job).returncode != 0  # the first knows nothing of it
    assert not left_behind(second.folder)
    assert slurm.run("sinfo", "-hN", "-o", "%N").stdout.split() == list(NODES)


@needs_slurm
def test_nothing_is_left_when_the_tests_are_killed(tmp_path):
    (tmp_path / "job.sbatch").write_text("#!/bin/sh\nsleep 600\n")
    code = f"""
        import time
        from tests.helpers.slurm_cluster import cluster, wait_until
        with cluster() as running:
            job = running.submit("job.sbatch", {str(tmp_path)!r})
            wait_until(lambda: len(running.processes(job)) >= 2, 100, "the job runs")
            print(running.folder, flush=True)
            time.sleep(600)
        """
    tests = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    folder = Path(tests.stdout.readline().strip())
    assert {"munged", "slurmctld", "slurmd", "sleep"} <= set(left_behind(folder))
    tests.send_signal(signal.SIGKILL)
    tests.communicate()
    wait_until(lambda: not left_behind(folder), 100, "everything is gone")


@needs_slurm
def test_a_daemon_that_does_not_start_is_shown_with_its_log():
    words = "(?s)did not start: slurmctld ended with 1.*NoSuchSetting"
    with pytest.raises(RuntimeError, match=words), cluster("NoSuchSetting=1"):
        pytest.fail("it has started")
