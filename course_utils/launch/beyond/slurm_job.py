"""A Slurm job, `on=Slurm(…)`: submitted through submitit, followed with scontrol, ended with scancel.

submitit writes the batch file and starts one process on each node, an agent (`remote`). To get a job's state submitit
uses sacct, which many clusters do not have; scontrol knows every job that runs or has just ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import hardware, notebook
from ..place import Place, require_whole
from ..watch.errors import LauncherError
from ..worker import surroundings
from . import remote
from .folder import Folder, Job, made
from .follower import Follower

if TYPE_CHECKING:
    from ..place import Start

_PAUSE_S = 0.1
# Seconds between two queries; the second value is for a job that is still queued after _EARLY_S.
_ASK_S, _ASK_QUEUED_S = 0.5, 3.0
_EARLY_S = 30.0
_COMMAND_S = 20.0
# Ends the job and removes its folder once the notebook's process has ended, however it ended: the pipe is closed then.
_GUARD = 'read _; scancel "$1"; for _ in 1 2 3 4 5; do rm -rf "$2" && break; sleep 0.5; done'
_NO_CONFIGURATION = re.compile("sbatch: fatal: .*configuration (source|file)")
HAS_NOT_ENDED = ("PENDING", "CONFIGURING", "RUNNING", "REQUEUED", "SUSPENDED", "STAGE_OUT", "RESIZING", "SIGNALING")
_NEVER = ("PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints")  # such a job never starts
_ENDS = {
    "CANCELLED": "was cancelled by somebody else",
    "TIMEOUT": "ran out of time: ask for more with Slurm(time=…)",
    "OUT_OF_MEMORY": "ran out of memory: use a smaller model, batch or data set, or ask for more "
    "(Slurm(options={'mem': …}))",
    "NODE_FAIL": "lost a node",
    "PREEMPTED": "was stopped for a job of higher priority",
    "COMPLETED": "ended before its ranks did",
}


@dataclass(frozen=True)
class Slurm(Place):
    """A job on a Slurm cluster, submitted from where this notebook runs.

    It has `nodes` nodes with `gpus_per_node` GPUs each and one worker per GPU; without GPUs, `workers_per_node` workers
    each. `time` is the job's limit in minutes. `partition` and `account` are the cluster's. `setup` holds shell lines
    that run first on the compute nodes (`module load …`), `options` further options of sbatch, such as {"mem": "16G"}.
    `folder` must be visible to the notebook and all compute nodes; by default it is in the home folder.
    """

    nodes: int = 1
    gpus_per_node: int = 0
    workers_per_node: int | None = None
    time: float = 10
    partition: str | None = None
    account: str | None = None
    setup: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    folder: str | os.PathLike[str] | None = None
    is_here = False
    limit_s = float("inf")  # `time` ends the job

    def __post_init__(self):
        require_whole("Slurm(nodes=…)", self.nodes)
        require_whole("Slurm(gpus_per_node=…)", self.gpus_per_node, 0)
        if self.workers_per_node is not None:
            require_whole("Slurm(workers_per_node=…)", self.workers_per_node)
        if self.workers_per_node is None and not self.gpus_per_node:
            raise ValueError(
                "Slurm(…) needs gpus_per_node, a worker for each, or workers_per_node where there are no GPUs"
            )
        if isinstance(self.time, bool) or not isinstance(self.time, (int, float)) or not self.time > 0:
            raise ValueError(f"Slurm(time=…) is a number of minutes above 0, not {self.time!r}")

    @property
    def _share(self):
        return self.workers_per_node or self.gpus_per_node

    def world_size(self, asked: int | None) -> int:
        """Return the job's number of workers. Raises ValueError if `asked` is another."""
        found = self.nodes * self._share
        if asked not in (None, found):
            raise ValueError(
                f"world_size is {asked}, but {self.nodes} × {self._share} workers are {found}: leave world_size out"
            )
        return found

    def shape(self, world_size: int, placement: hardware.Placement) -> tuple[int, int, int]:
        return self.nodes, self._share, self.gpus_per_node

    def place(self, world_size: int, backend: str | None) -> hardware.Placement:
        means = "" if backend in (None, "auto") else f" with {backend}"
        workers = f"{self.nodes} × {self._share} workers"
        return hardware.Placement(
            backend,
            "cuda" if self.gpus_per_node else "cpu",
            f"{workers} as a job of Slurm{means}",
            world_size,
            is_here=False,
        )

    @contextlib.contextmanager
    def ranks(self, start: Start) -> Iterator[Follower]:
        with self.made(self.parent(), start) as folder:
            yield Follower(folder, SlurmJob(self, folder, start.name), start.world_size)

    def parent(self) -> Path:
        """Return the folder for folders of runs, after making it. Raises ValueError if that is not possible."""
        try:
            parent = Path(self.folder) if self.folder is not None else Path.home() / ".cache" / "course_utils"
        except RuntimeError:
            raise ValueError("this user has no home folder: name one that all nodes see, Slurm(folder=…)") from None
        try:
            parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"Slurm(folder=…): {parent} cannot be made ({error.strerror})") from None
        return parent.resolve()

    def made(
        self, parent: Path, start: Start, serves_requests: bool = False
    ) -> contextlib.AbstractContextManager[Folder]:
        """Return a context manager that makes the folder of one start of the ranks, in `parent`."""
        captured = surroundings.capture(start.world_size, start.placement, 0, start.debug, {})
        captured = dataclasses.replace(captured, environment=None, cores=None)  # the job's own
        job = Job(self.nodes, self._share, None, [], serves_requests)
        return made(parent, start.call_fd, captured, start.placement.backend, job)

    def parameters(self, name: str) -> dict[str, Any]:
        """Return the parameters of submitit's SlurmExecutor."""
        package = str(Path(__file__).resolve().parents[3])
        found = {
            "job_name": name, "nodes": self.nodes, "ntasks_per_node": 1, "time": max(1, round(self.time)),
            "partition": self.partition, "account": self.account, "gpus_per_node": self.gpus_per_node or None,
            "setup": [f'export PYTHONPATH="{package}${{PYTHONPATH:+:$PYTHONPATH}}"', *self.setup],
            "srun_args": ["--kill-on-bad-exit=1"],  # an agent that is lost ends the job
            "additional_parameters": {"no-requeue": True, **self.options},  # a second start would find no notebook
        }  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}


class SlurmJob:
    """The engine of a Follower that runs a job with the settings `slurm`."""

    start_s = float("inf")  # a job may be queued for any time; its own limit ends it
    pause_s = _PAUSE_S

    def __init__(self, slurm, folder, name, task=remote.run_agent_in_slurm):
        """Prepare a job that calls `task(path of the folder)` on each node."""
        self._slurm, self._folder, self._name, self._task = slurm, folder, name, task
        self._job = self._guard = self._said = self._shown = None
        self._state, self._exit_code = "", ""
        self._asked = 0.0

    def start(self) -> None:
        if not shutil.which("sbatch"):
            raise LauncherError(
                "there is no Slurm on this machine (no command sbatch): run the notebook where jobs are submitted, "
                "or take on=Nodes(2), which starts two agents here"
            )
        import submitit

        executor = submitit.SlurmExecutor(folder=self._folder.path / "slurm", python=sys.executable)
        executor.update_parameters(**self._slurm.parameters(self._name))
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit prints there what the error says, too
                self._job = executor.submit(self._task, str(self._folder.path))
        except (submitit.core.utils.FailedJobError, subprocess.CalledProcessError) as error:
            raise LauncherError(_refusal(str(getattr(error, "stderr", None) or error))) from None
        self._submitted = time.monotonic()
        command = ["sh", "-c", _GUARD, "sh", self._job.job_id, self._folder.path]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._ask()

    def pause(self) -> None:
        time.sleep(self.pause_s)

    def take(self, news: None) -> None:
        is_queued = self._state == "PENDING" and time.monotonic() - self._submitted > _EARLY_S
        if time.monotonic() - self._asked > (_ASK_QUEUED_S if is_queued else _ASK_S):
            self._ask()

    def _ask(self):
        """Query the job's state, and print it if it has changed."""
        self._asked = time.monotonic()
        found = _run("scontrol", "-o", "show", "job", self._job.job_id).stdout
        fields = dict(re.findall(r"(?:^| )(JobState|Reason|ExitCode|NodeList)=(\S*)", found))
        if "JobState" not in fields:  # Slurm forgets a job minutes after its end, or does not answer
            return
        self._state, self._exit_code = fields["JobState"], fields.get("ExitCode", "")
        if self._state == "COMPLETING":  # its ranks have ended, and Slurm cleans up
            ended_by = {"TimeLimit": "TIMEOUT", "OutOfMemory": "OUT_OF_MEMORY"}.get(fields.get("Reason"))
            self._state = ended_by or {":15": "CANCELLED", "0:0": "COMPLETED"}.get(self._exit_code[-3:], "FAILED")
        where = f"on {fields['NodeList']}" if self._state == "RUNNING" else f"({fields.get('Reason', '')})"
        said = f"Slurm job {self._job.job_id}: {self._state.lower()} {where}".removesuffix(" (None)").removesuffix(
            " ()"
        )
        if fields.get("Reason") in _NEVER:
            self._state = "NEVER"
        if said != self._said and self._state in ("PENDING", "RUNNING"):
            self._tell(said)
        self._said = said

    def _tell(self, said):
        """Show the job's state; where somebody looks on, in place of what was shown of it before."""
        if not (notebook.is_watched() and notebook.is_in_cell()):
            print(said, flush=True)
        elif self._shown is not None:
            self._shown.update({"text/plain": said}, raw=True)
        else:
            from IPython.display import display

            self._shown = display({"text/plain": said}, raw=True, display_id=True)

    def problem(self) -> str | None:
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
        """Return the last error line of the job's log, or a hint if it wrote none."""
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
    def answers(self) -> bool:
        return self._state == "RUNNING"

    @property
    def killed_for_memory(self) -> bool:
        return self._state == "OUT_OF_MEMORY"

    def stop(self, is_well: bool) -> bool:
        """Cancel the job unless it has done its work or has ended; return True, since nothing runs on this machine."""
        if self._job is not None and not is_well and self._state in (*HAS_NOT_ENDED, "NEVER", ""):
            _run("scancel", self._job.job_id)
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
        return True


def _refusal(said):
    """Say why sbatch did not take a job; `said` is what it wrote."""
    lines = "; ".join(dict.fromkeys(re.findall(r"sbatch: error: (.*)", said))) or said.strip()
    if _NO_CONFIGURATION.search(said):
        return (
            "sbatch is installed here and finds no cluster (no slurm.conf): run the notebook on a login node of the "
            f"cluster, or take on=Nodes(2), which starts two agents here\n\nsbatch said: {lines}"
        )
    return f"Slurm did not take the job: {lines}"


def _run(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S)
    except (subprocess.TimeoutExpired, FileNotFoundError) as error:
        raise LauncherError(f"Slurm does not answer: {error}") from None
