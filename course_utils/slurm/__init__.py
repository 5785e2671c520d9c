"""Batch files for Slurm that run the course's training program, or your own, on one node or many: `print(Job("ddp"))`.

From a shell, `python -m course_utils.slurm` prints them.
"""

import os
import re
import shlex
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

TITLES = {
    "dp": "DataParallel: one process that splits each batch over the GPUs of its node",
    "ddp": "Distributed data parallel: every worker holds the whole model and a part of each batch",
    "fsdp": "Fully sharded data parallel: every worker holds a shard of the model and a part of each batch",
    "hsdp": "Hybrid sharding: the model is sharded inside a node and replicated across nodes",
    "mirrored": "MirroredStrategy: one process of TensorFlow with a copy of the model on each GPU of its node",
    "multiworker": "MultiWorkerMirroredStrategy: a process of TensorFlow on each node, for all GPUs of that node",
    "horovod": "Horovod: every worker holds the whole model and a part of each batch",
}
ELSEWHERE = ("mirrored", "multiworker", "horovod")  # other frameworks; the course has no program for them
ONE_A_NODE = ("dp", "mirrored", "multiworker")  # one process per node, for all of its GPUs
STARTS = {
    "dp": "one process",
    "mirrored": "one process",
    "multiworker": "one process a node",
    "horovod": "horovodrun starts the workers",
}
# Options of the course's program. With hsdp each node holds one replica of the model, cut into shards.
OPTIONS = {
    "dp": "--strategy dp",
    "ddp": "--strategy ddp",
    "fsdp": "--strategy fsdp",
    "hsdp": '--strategy fsdp --replicas "$SLURM_NNODES"',
}
CPUS_PER_GPU = 4  # one for the worker, the others for loading its data
TIME = r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)"  # Slurm's format, days first
ROOT = Path(__file__).resolve().parents[2]
LEAST_S = 300  # a shorter job would spend its time on restarts
JOIN_S = 300  # for agents to meet; torchrun's own 600 s would keep nodes idle for longer
RESTARTS = 3  # by torchrun, inside a job, when a worker fails


@dataclass(frozen=True)
class Job:
    """What a job asks Slurm for, and what it runs; `str(job)` is its batch file.

    `gpus_per_node` is 2 by default, or 0 if `workers_per_node` is given: that is for jobs without GPUs (2 by default),
    and with GPUs there is one worker per GPU. `arguments` are appended to the program's own. `resumes` says of a
    `program` of your own that it goes on from its checkpoint when it is started again, as the course's does. Raises
    ValueError, in one sentence, if the job cannot run.
    """

    strategy: str
    nodes: int = 1
    gpus_per_node: int | None = None
    workers_per_node: int | None = None
    cpus_per_task: int | None = None
    time: str = "01:00:00"
    partition: str | None = None
    account: str | None = None
    name: str | None = None
    program: str | None = None
    resumes: bool = False
    arguments: tuple = ()

    def __post_init__(self):
        if self.gpus_per_node is None:
            object.__setattr__(self, "gpus_per_node", 2 if self.workers_per_node is None else 0)
        _check_numbers(self)
        _check_strategy(self)
        _check_words(self)

    @property
    def num_workers(self):
        """Workers on each node: one for all GPUs, one for each GPU, or as many as were asked for."""
        return 1 if self.strategy in ONE_A_NODE else self.gpus_per_node or self.workers_per_node or 2

    @property
    def num_cpus(self):
        """CPUs on each node, for all of its workers."""
        usual = self.gpus_per_node * CPUS_PER_GPU or self.num_workers
        return usual if self.cpus_per_task is None else self.cpus_per_task

    @property
    def starts_again(self):
        """Whether the job is requeued at its time limit: if its program can resume, and is not over at once."""
        days, hours, minutes, seconds = re.fullmatch(TIME, self.time).groups(default="0")
        seconds = (int(days) * 24 + int(hours)) * 3600 + int(minutes) * 60 + int(seconds)
        return self.can_resume and seconds >= LEAST_S

    @property
    def can_resume(self):
        """Whether the program goes on from its checkpoint: the course's does, one of your own if you say so."""
        return self.resumes or not self.program

    def __str__(self):
        return "\n\n".join([_head(self), _resources(self), _elsewhere(self), _environment(self), _command(self)]) + "\n"


# Refusals


def _check_numbers(job):
    for name, least in (("nodes", 1), ("gpus_per_node", 0), ("workers_per_node", 1), ("cpus_per_task", 1)):
        value = getattr(job, name)
        if value is not None and (type(value) is not int or value < least):
            raise ValueError(f"--{name.replace('_', '-')} is {value!r}, and it takes a whole number, {least} or more")
    if job.gpus_per_node and job.workers_per_node is not None:
        raise ValueError(
            "--workers-per-node is for jobs without GPUs (--gpus-per-node 0): with GPUs their number decides"
        )
    if job.num_cpus < job.num_workers:
        raise ValueError(
            f"with --cpus-per-task {job.num_cpus} a node's {job.num_workers} workers would wait for one "
            f"another: ask for {job.num_workers} CPUs or more"
        )


def _check_strategy(job):
    if job.strategy not in TITLES:
        raise ValueError(f"there is no strategy {job.strategy!r}: choose one of {', '.join(TITLES)}")
    if job.strategy in ELSEWHERE and not job.program:
        raise ValueError(f"{job.strategy} needs a program of yours (--program FILE): the course's own is torch's")
    if job.strategy == "mirrored" and job.nodes > 1:
        raise ValueError(
            f"mirrored on {job.nodes} nodes cannot be: MirroredStrategy is one process, which cannot leave its node; "
            "take multiworker"
        )
    if job.strategy == "dp" and job.nodes > 1:
        raise ValueError(
            f"dp on {job.nodes} nodes cannot be: DataParallel is one process, which cannot leave its node; take ddp"
        )
    if job.strategy == "dp" and not job.gpus_per_node:
        raise ValueError("dp without GPUs has nothing to split a batch over: give --gpus-per-node, or take ddp on CPUs")
    if job.strategy == "hsdp" and job.nodes == 1:
        raise ValueError("hsdp on one node has nothing to replicate across: give --nodes 2 or more, or take fsdp")


def _check_words(job):
    if not re.fullmatch(TIME, job.time) or not re.search("[1-9]", job.time):
        raise ValueError(
            f"--time is {job.time!r}: give hours, minutes and seconds, such as 01:30:00, and more than none"
        )
    for name in ("partition", "account", "name"):
        word = getattr(job, name)
        # Each is written into an #SBATCH line; the name also becomes part of a file name.
        if word is not None and not re.fullmatch(r"[\w.+-]+" if name == "name" else r"[\w.,:@+-]+", word):
            raise ValueError(f"--{name} is {word!r}, and it takes one word of letters, digits, and . _ + -")


# The parts of the file


def _head(job):
    workers = "1 process" if job.strategy in ("dp", "mirrored") else _several(job.nodes * job.num_workers, "worker")
    where = _several(job.nodes * job.gpus_per_node, "GPU") if job.gpus_per_node else "CPU cores"
    each = f", {job.num_workers} on each node" if job.nodes > 1 else ""
    return f"""#!/bin/bash
# {TITLES[job.strategy]}.
# {_several(job.nodes, "node")}: {workers} on {where}{each}.
#
#   sbatch FILE       hands this file in, and prints the job's number
#   squeue --me       does it wait (PD), and for what, or run (R)?
#   scancel NUMBER    ends it, on every node
#
# What it prints stands in {job.name or job.strategy}-NUMBER.out, in the folder you ran sbatch in;
# `tail -f` follows it."""


def _several(count, what):
    return f"{count} {what}{'s' if count > 1 else ''}"


def _resources(job):
    lines = [
        (f"job-name={job.name or job.strategy}", ""),
        (f"nodes={job.nodes}", ""),
        ("ntasks-per-node=1", STARTS.get(job.strategy, "one torchrun a node, which starts the workers")),
        (f"gpus-per-node={job.gpus_per_node}", f"some clusters want --gres=gpu:{job.gpus_per_node} instead"),
        (f"cpus-per-task={job.num_cpus}", "for all workers of a node, and what loads their data"),
        (f"time={job.time}", "hours:minutes:seconds; a job that asks for less starts sooner"),
        ("output=%x-%j.out", "the job's name and number; printed lines and errors of all nodes"),
        ("open-mode=append", "a job that starts again goes on in the same file"),
    ]
    if job.starts_again:
        lines.append(("requeue", "back into the queue when a node fails"))
        lines.append(("signal=B:USR1@60", "a minute before the time is over, or two, tell this file"))
    return "\n".join(_directive(*line) for line in lines if line[0] != "gpus-per-node=0")


def _directive(option, why, mark="#SBATCH"):
    return f"{mark} --{option:<30} # {why}" if why else f"{mark} --{option}"


def _elsewhere(job):
    """Return the lines that differ between clusters: set if asked for, else examples that are switched off."""
    example = "gpu" if job.gpus_per_node else "cpu"
    partition = (f"partition={job.partition or example}", "which nodes; `sinfo -s` lists the partitions")
    account = (f"account={job.account or 'my_project'}", "who pays; your cluster's guide says whether it is needed")
    memory = ("mem=0", "all memory of the node, where a job gets little by default")
    asked = {partition: job.partition, account: job.account, memory: None}
    lines = [_directive(*line, "#SBATCH" if asked[line] else "##SBATCH") for line in asked]
    return "\n".join(
        [
            "# Change on your own cluster; a line with two # is off, with one it is on:",
            *lines,
        ]
    )


def _environment(job):
    found, folder = "The Python that wrote this file", os.path.dirname(os.path.abspath(sys.executable))
    if job.strategy in ELSEWHERE:
        found = "The Python of `make elsewhere`"
        folder = os.environ.get("COURSE_ELSEWHERE") or ROOT / "build" / "elsewhere"
        folder = os.path.join(folder, "bin")
    # Horovod for PyTorch was built for this Python's torch.
    paths = f"{ROOT}{os.pathsep}{sysconfig.get_path('purelib')}"
    torch = f"\nexport PYTHONPATH={shlex.quote(paths)}" if job.strategy == "horovod" else ""
    return f"""set -e

# {found}. Where the nodes have another, load that one instead, for example:
# module load python cuda
# conda activate course
export PATH={shlex.quote(folder)}:"$PATH"{torch}

export OMP_NUM_THREADS={job.num_cpus // job.num_workers}  # the CPUs of one worker
export PYTHONUNBUFFERED=1  # what is printed is in the file at once; where several workers print, their lines may mix
# Where nodes have more than one network, name the fast one (`ip -brief address` lists them):
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0{" HOROVOD_GLOO_IFACE=ib0" * (job.strategy == "horovod")}"""


def _command(job):
    """Return the end of the file: the rendezvous, the requeueing, and the command."""
    srun = 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1'
    command = [*([srun] if job.strategy != "horovod" else []), *_launcher(job), *_program(job)]
    parts = [MEETING[job.strategy].format(workers=job.num_workers)] if job.strategy in MEETING else []
    parts += [AGAIN] if job.starts_again else []
    parts.append(" \\\n    ".join(command) + (" &\nwait $! || wait $!" if job.starts_again else ""))
    return "\n\n".join(parts)


RENDEZVOUS = """\
# Slurm runs this file on the first of the job's nodes, and there the workers of all nodes meet. The port comes from the
# job's number, so that two jobs on one node do not meet each other.
endpoint="$(hostname):$((20000 + SLURM_JOB_ID % 10000))"
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # when torchrun starts the workers again, they meet at a new store\
"""

WORKERS = """\
# Every process must know the addresses of all, and its own place among them. The port comes from the job's number.
port=$((20000 + SLURM_JOB_ID % 10000))
workers=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed "s/.*/\\"&:$port\\"/" | paste -sd,)
export TF_CLUSTER="{{\\"worker\\": [$workers]}}\""""

HOSTS = """\
# Slurm runs this file on the first of the job's nodes. horovodrun starts the processes of the others from there, by
# ssh, which must not ask for a password.
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed "s/$/:{workers}/" | paste -sd,)"""

MEETING = {"ddp": RENDEZVOUS, "fsdp": RENDEZVOUS, "hsdp": RENDEZVOUS, "multiworker": WORKERS, "horovod": HOSTS}

AGAIN = """\
# When the time is nearly over the job goes back into the queue, to go on from its checkpoint: 20 times, not for ever.
# The shell hears Slurm's signal only while it waits, so srun runs in the background; the signal ends the first wait.
again() { [ "${SLURM_RESTART_COUNT:-0}" -ge 20 ] || scontrol requeue "$SLURM_JOB_ID"; }
trap again USR1"""


def _launcher(job):
    if job.strategy in ("dp", "mirrored"):
        return ["python"]
    if job.strategy == "multiworker":
        task = '{\\"type\\": \\"worker\\", \\"index\\": $SLURM_PROCID}'
        config = f'export TF_CONFIG="{{\\"cluster\\": $TF_CLUSTER, \\"task\\": {task}}}"'
        return [f"bash -c '{config}; exec python \"$@\"' worker"]
    if job.strategy == "horovod":
        return [f'horovodrun --gloo -np {job.nodes * job.num_workers} -H "$hosts"', "python"]
    restarts = f" --max-restarts {RESTARTS}" if job.can_resume else ""
    return [
        f'torchrun --nnodes "$SLURM_NNODES" --nproc-per-node {job.num_workers}{restarts}',
        '--rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$endpoint"',
        f"--rdzv-conf join_timeout={JOIN_S}",
    ]


def _program(job):
    if job.program:
        return [shlex.join([job.program, *job.arguments])]
    checkpoint = '--checkpoint "checkpoints/$SLURM_JOB_NAME-$SLURM_JOB_ID" --resume auto'
    given = [shlex.join(job.arguments)] if job.arguments else []
    return [f"-m course_utils.train {OPTIONS[job.strategy]}", checkpoint, *given]
