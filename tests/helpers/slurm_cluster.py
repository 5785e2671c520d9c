"""A private Slurm for tests: one real controller and two nodes on loopback, removed completely afterwards.

    def test_something(slurm, tmp_path):                  # skipped where Slurm is not installed
        job = slurm.submit("job.sbatch", tmp_path)
        assert slurm.wait(job) == "COMPLETED"

    with cluster() as another:                            # several may run at a time
        another.run("sinfo")

slurm_guard.py starts it and ends it.
"""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.helpers.slurm_guard import PATH, environment

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 120
OVER = ("CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT")
MISSING = [name for name in ("munged", "slurmctld", "slurmd", "sbatch", "srun") if not shutil.which(name, path=PATH)]
REASON = f"needs Slurm, and here there is no {', '.join(MISSING)}: apt-get install slurm-wlm munge"


class Cluster:
    """A running cluster: under `env` sbatch, srun, squeue, sinfo, scancel and scontrol talk to it."""

    def __init__(self, folder):
        self.folder, self.env = Path(folder), environment(folder)

    def run(self, *command, **options):
        """Run one of Slurm's commands and return it as it ended, its output as text."""
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, **options)

    def submit(self, path, folder, *arguments):
        """Hand in the batch file at `path` from `folder` and return the job's number, as text."""
        done = self.run("sbatch", "--parsable", *arguments, str(path), cwd=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, job):
        """The state of a job, such as PENDING, RUNNING or COMPLETED."""
        return re.search(r"JobState=(\w+)", self.run("scontrol", "--oneliner", "show", "job", job).stdout)[1]

    def wait(self, job, timeout_s=WAIT_S):
        """Wait until a job is over, with all of its processes, and return its state."""
        wait_until(lambda: self.state(job) in OVER and not self.processes(job), timeout_s, f"job {job} is over")
        return self.state(job)

    def processes(self, job):
        """The processes of a job that are there now, its batch file's shell among them, wherever they have moved to."""
        marks = {f"SLURM_JOB_ID={job}", f"SLURM_CONF={self.env['SLURM_CONF']}"}
        return [process for process, variables in environments() if marks <= variables]

    def stepds(self, job):
        """The Slurm processes that accompany a job; the last action of each is to report how its part ended."""
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if " ".join(process.info["cmdline"] or ()).startswith(f"slurmstepd: [{job}.")
        ]


@contextlib.contextmanager
def cluster(lines=""):
    """Start a cluster and stop it; `lines` are put at the end of its slurm.conf.

    Raises RuntimeError, with the log of the daemon that did not start.
    """
    guard = subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.slurm_guard", lines],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        answer = json.loads(guard.stdout.readline() or '{"error": "the process that guards the cluster has ended"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        yield Cluster(answer["folder"])
    finally:
        guard.stdin.close()
        guard.stdout.close()
        guard.wait(timeout=100)


@pytest.fixture(scope="session")
def slurm():
    """The cluster that the tests of this process share; tests that use it are skipped where Slurm is not installed."""
    if MISSING:
        pytest.skip(REASON)
    with cluster() as running:
        yield running


def wait_until(condition, timeout_s, what):
    """Ask `condition` again and again until it is true; fail when it is not in time."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"after {timeout_s} s it is still not true that {what}"
        time.sleep(0.05)


def environments():
    """(process, {"NAME=value", …}) of each process that has not ended and that this user may look into."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process, set(Path(f"/proc/{process.pid}/environ").read_text(errors="replace").split("\0"))
