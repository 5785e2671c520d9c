"""Starts the daemons of one Slurm cluster on loopback, and ends all of it when nobody holds the other end of its pipe.

    test process ──(a pipe)── guard ──┬── munged            whose key only this cluster has
                                      ├── slurmctld         the controller
                                      ├── slurmd n1, n2     the nodes, both on this machine
                                      └── slurmstepd …      what nodes start, and the jobs' processes

The guard adopts what the daemons leave behind. When its end of the pipe closes, because the tests are over or have been
killed, it kills all of these and removes the cluster's folder. Tried with Slurm 22.05, as root and as an ordinary user.

    python -m tests.helpers.slurm_guard [LINES]  LINES go to the end of slurm.conf; prints {"folder": …} or {"error": …}
"""

import contextlib
import getpass
import json
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from course_utils.processes import linux

NODES = ("n1", "n2")
NUM_CPUS, NUM_GPUS = 16, 4  # of each node, in name: jobs are counted against them, and run on the cores that are there
START_S = 60
# Where daemons are installed is not on every user's path.
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])

CONFIGURATION = """
ClusterName=course
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# cred_expire is also how long a job waits that has been put back into the queue, 120 s by default.
AuthInfo=socket={folder}/munge.socket,cred_expire=15
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
# Plugins that need neither cgroups nor a database, and so no more than an ordinary user may.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# A job has the limits of whoever hands it in, Slurm's usual way: with slurmd's own, a crash would leave a core file.
# The CPUs below are taken for true, however few this machine has.
SlurmdParameters=config_overrides
ReturnToService=2
# A batch job starts as soon as it is handed in, as one of srun does; a busy controller saves itself work for up to 3 s.
# One that waits for a time starts within a second of it, not when the queue is next looked at, every 60 s.
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1
# What does not end on SIGTERM is killed this many seconds later.
KillWait=2
# The port of a job's rendezvous comes from its number, and two clusters on one machine must not give the same.
FirstJobId={first_job}
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[0]} CPUs={num_cpus} Gres=gpu:{num_gpus}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={num_cpus} Gres=gpu:{num_gpus}
PartitionName=course Nodes=n1,n2 Default=YES State=UP
"""


def main(lines=""):
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    linux.adopt_orphans()
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        folder.chmod(0o755)  # munge demands that everybody can reach its socket
        configure(folder, lines)
        try:
            start(folder)
            answer = {"folder": str(folder)}
        except RuntimeError as error:
            answer = {"error": str(error)}
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what it adopts leaves nothing when it ends
        print(json.dumps(answer), flush=True)
        sys.stdin.read()  # until the tests close it, or are killed
    finally:
        linux.kill_descendants()
        shutil.rmtree(folder)


def environment(folder):
    """The environment under which Slurm's commands talk to the cluster in `folder`."""
    # The tests may themselves be a job of another cluster, whose variables would choose for these.
    others = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SCANCEL_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return env | {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": PATH}


def configure(folder, lines):
    """Write the cluster's configuration, with ports that are free, and make a folder for each daemon's state."""
    for name in ("state", *NODES):
        (folder / name).mkdir()
    controller_port, *ports = free_ports(1 + len(NODES))
    text = CONFIGURATION.format(
        folder=folder,
        host=socket.gethostname().partition(".")[0],
        user=getpass.getuser(),
        ports=ports,
        controller_port=controller_port,
        num_cpus=NUM_CPUS,
        num_gpus=NUM_GPUS,
        first_job=random.randrange(1, 60_000_000),
    )
    (folder / "slurm.conf").write_text(f"{text}{lines}\n")
    for i in range(NUM_GPUS):  # a GPU counts where there is a device for it, whatever the device
        (folder / f"gpu{i}").symlink_to(os.devnull)
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{NUM_GPUS - 1}]\n")
    (folder / "cgroup.conf").write_text(f"CgroupPlugin={cgroup_plugin()}\n")
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o600)


def cgroup_plugin():
    """The plugin that ignores the machine's cgroups; every node loads it, and the others are not needed here."""
    said = subprocess.run(["slurmd", "-V"], env=environment(""), capture_output=True, text=True).stdout
    version = tuple(map(int, re.search(r"(\d+)\.(\d+)", said).groups()))
    return "disabled" if version >= (24, 5) else "cgroup/v1"


def free_ports(count):
    """Free ports on loopback, below the range that the system assigns, so that no one takes them meanwhile."""
    with contextlib.ExitStack() as held:
        ports = []
        while len(ports) < count:
            listening = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listening.bind(("127.0.0.1", random.randrange(10_000, 20_000)))
                ports.append(listening.getsockname()[1])
        return ports


def start(folder):
    """Start the daemons, each as soon as what it needs answers.

    Raises RuntimeError with the log of one that has ended.
    """
    daemons = Daemons(folder)
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    daemons.begin("munged", "munged", "--foreground", f"--socket={folder}/munge.socket", *files)
    daemons.wait_for(bool, "munge", "--no-input", f"--socket={folder}/munge.socket")
    daemons.begin("slurmctld", "slurmctld", "-D")
    daemons.wait_for(lambda said: " is UP" in said, "scontrol", "ping")
    for node in NODES:
        daemons.begin(node, "slurmd", "-D", "-N", node)
    idle = [f"{node} idle" for node in NODES]
    daemons.wait_for(lambda said: sorted(said.splitlines()) == idle, "sinfo", "--noheader", "--Node", "--format=%N %T")


class Daemons:
    """The cluster's daemons, each with its log in the cluster's folder."""

    def __init__(self, folder):
        self.folder, self.env, self.begun = folder, environment(folder), {}

    def begin(self, name, *command):
        # Each ends with the guard, should that be killed.
        with open(self.folder / f"{name}.log", "wb") as log:
            self.begun[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_for(self, condition, *command):
        """Wait until `condition` is true of what `command` prints.

        Raises RuntimeError where a daemon ends, or in vain.
        """
        deadline_s = time.monotonic() + START_S
        while not condition(subprocess.run(command, env=self.env, capture_output=True, text=True).stdout):
            ended = [name for name, daemon in self.begun.items() if daemon.poll() is not None]
            if ended or time.monotonic() > deadline_s:
                raise RuntimeError(
                    "the tests' Slurm did not start: " + "\n".join(map(self.report, ended or self.begun))
                )
            time.sleep(0.05)

    def report(self, name):
        """How a daemon is, and the end of its log."""
        code = self.begun[name].poll()
        log = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
        state = "is running" if code is None else f"ended with {code}"
        return "\n".join([f"{name} {state}, and its log ends so:", *log[-20:]])


if __name__ == "__main__":
    main(*sys.argv[1:])
