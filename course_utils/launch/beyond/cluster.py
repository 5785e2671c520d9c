"""A Slurm job: submitted through submitit, followed with scontrol, ended with scancel.

submitit writes the batch file and starts one process on each node, an agent (`remote`). Its way to ask for a job's
state is sacct, which many clusters do not have; scontrol knows every job that runs or has just ended.
"""

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from ..watch.failure import LauncherError
from . import remote

_PAUSE_S = 0.1
# how often Slurm is asked, of a job that waits only so often after its first half minute
_ASK_S, _ASK_QUEUED_S = 0.5, 3.0
_EARLY_S = 30.0
_COMMAND_S = 20.0
HAS_NOT_ENDED = ("PENDING", "CONFIGURING", "RUNNING", "REQUEUED", "SUSPENDED", "STAGE_OUT", "RESIZING", "SIGNALING")
_NEVER = ("PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints")  # reasons why a job waits for good
_ENDS = {
    "CANCELLED": "was cancelled by somebody else",
    "TIMEOUT": "ran out of time: ask for more with Slurm(time=…)",
    "OUT_OF_MEMORY": "ran out of memory: use a smaller model, batch or data set, or ask for more "
    "(Slurm(options={'mem': …}))",
    "NODE_FAIL": "lost a node",
    "PREEMPTED": "was stopped for a job of higher priority",
    "COMPLETED": "ended before its ranks did",
}


class Cluster:
    """The engine of a Follower: a job as `slurm`, a Slurm, describes it."""

    start_s = float("inf")  # it may wait for its turn; its own time limit ends it at last

    def __init__(self, slurm, folder, name):
        self._slurm, self._folder, self._name = slurm, folder, name
        self._job = self._said = None
        self._state, self._exit_code = "", ""
        self._asked = 0.0

    def start(self):
        import submitit

        if not shutil.which("sbatch"):
            raise LauncherError(
                "there is no Slurm on this machine (no command sbatch): run the notebook where jobs are submitted, "
                "or take on=Nodes(2), which starts two agents here"
            )
        executor = submitit.SlurmExecutor(folder=self._folder.path / "slurm", python=sys.executable)
        executor.update_parameters(**self._slurm.parameters(self._name))
        try:
            self._job = executor.submit(remote.run_agent_in_slurm, str(self._folder.path))
        except (submitit.core.utils.FailedJobError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or error
            said = "; ".join(re.findall(r"sbatch: error: (.*)", str(said))) or str(said).strip()
            raise LauncherError(f"Slurm did not take the job: {said}") from None
        self._submitted = time.monotonic()
        self._ask()

    def pause(self):
        time.sleep(_PAUSE_S)

    def take(self, news):
        is_queued = self._state == "PENDING" and time.monotonic() - self._submitted > _EARLY_S
        if time.monotonic() - self._asked > (_ASK_QUEUED_S if is_queued else _ASK_S):
            self._ask()

    def _ask(self):
        """Ask Slurm for the job's state, and say when it has changed."""
        self._asked = time.monotonic()
        found = _run("scontrol", "-o", "show", "job", self._job.job_id).stdout
        fields = dict(re.findall(r"(?:^| )(JobState|Reason|ExitCode|NodeList)=(\S*)", found))
        if "JobState" not in fields:  # forgotten, minutes after its end, or Slurm does not answer
            return
        self._state, self._exit_code = fields["JobState"], fields.get("ExitCode", "")
        if self._state == "COMPLETING":  # it has ended, and is being cleared away
            ended_by = {"TimeLimit": "TIMEOUT", "OutOfMemory": "OUT_OF_MEMORY"}.get(fields.get("Reason"))
            self._state = ended_by or {":15": "CANCELLED", "0:0": "COMPLETED"}.get(self._exit_code[-3:], "FAILED")
        where = f"on {fields['NodeList']}" if self._state == "RUNNING" else f"({fields.get('Reason', '')})"
        said = f"Slurm job {self._job.job_id}: {self._state.lower()} {where}".removesuffix(" (None)").removesuffix(
            " ()"
        )
        if fields.get("Reason") in _NEVER:
            self._state = "NEVER"
        if said != self._said and self._state in ("PENDING", "RUNNING"):
            print(said, flush=True)
        self._said = said

    def problem(self):
        state = self._state.partition("+")[0]
        if not state or state in HAS_NOT_ENDED:
            return None
        if state == "NEVER":
            return (
                f"Slurm job {self._job.job_id} asks for more than its partition has, and would never start: "
                f"{self._said}"
            )
        how = _ENDS.get(state, f"ended ({state}, exit code {self._exit_code})")
        return f"Slurm job {self._job.job_id} {how}{self._log()}"

    def _log(self):
        """What the job itself wrote, its last lines; where it could not, why that may be."""
        logs = sorted(Path(self._folder.path, "slurm").glob("*.err")) + sorted(
            Path(self._folder.path, "slurm").glob("*.out")
        )
        if not logs:
            return (
                f"; it wrote nothing: do the compute nodes see the folder {self._folder.path.parent}? Slurm(folder=…) "
                "names another"
            )
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "rror" in line] or lines
        return f". Its log ends with: {errors[-1].strip()}" if errors and self._state != "CANCELLED" else ""

    @property
    def answers(self):
        return self._state == "RUNNING"

    @property
    def killed_for_memory(self):
        return self._state == "OUT_OF_MEMORY"

    def stop(self, is_well):
        """Cancel the job, but for one that has done its work and ends by itself.

        Nothing was started on this machine.
        """
        if self._job is not None and not is_well and self._state in (*HAS_NOT_ENDED, "NEVER", ""):
            _run("scancel", self._job.job_id)
        return True


def _run(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S)
    except (subprocess.TimeoutExpired, FileNotFoundError) as error:
        raise LauncherError(f"Slurm does not answer: {error}") from None
