"""What the system grants: memory, shared memory, limits, disk, loopback and names."""

import os
import resource
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path

import psutil

from ..hardware import describe, host, sharing
from ..processes import network
from . import FAIL, OK, WARN, Line

GB, MB = 1e9, 1e6
LOOK_UP_S = 1.0  # longer than this, and every torchrun is seen to wait


def machine():
    yield Line("machine", OK, describe())
    available = psutil.virtual_memory().available
    if available < 2 * GB:
        yield Line("memory", WARN, f"{available / GB:.1f} GB are free, and a worker takes 0.4 GB", "end what uses it, or start fewer workers")


def shared_memory(folder="/dev/shm"):
    """DataLoaders hand over batches there, and NCCL exchanges messages."""
    if not os.path.isdir(folder):
        return
    usage = shutil.disk_usage(folder)
    said = f"{usage.free / MB:,.0f} of {usage.total / MB:,.0f} MB are free"
    if usage.total < 1 * GB:
        cure = "start the container with --shm-size=8g (Docker), or mount an emptyDir of medium Memory there (Kubernetes)"
    else:
        cure = f"remove what ended programs have left in {folder}"
    if usage.free < 64 * MB:
        yield Line(folder, FAIL, f"{said}: a DataLoader's workers, or NCCL, would end with a bus error", cure)
    elif usage.free < 1 * GB:
        yield Line(folder, WARN, f"{said}, which large batches fill", cure)
    else:
        yield Line(folder, OK, said)


def limits():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    can = f"run `ulimit -n {min(hard, 4096) if hard != resource.RLIM_INFINITY else 4096}` in the shell that starts Jupyter"
    ask = "ask whoever runs this machine for more (`nofile` in /etc/security/limits.conf)"
    if soft != resource.RLIM_INFINITY and soft < 1024:
        yield Line("open files", FAIL if soft < 256 else WARN, f"a process may open {soft}, and 1,024 are usual",
                   can if hard == resource.RLIM_INFINITY or hard >= 1024 else ask)  # fmt: skip
    else:
        yield Line("open files", OK, f"a process may open {_number(soft)}")
    yield from _processes()
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY and space < 64 * GB:
        yield Line("address space", FAIL, f"limited to {space / GB:.0f} GB, and CUDA reserves more than that", "run `ulimit -v unlimited`")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband") and locked != resource.RLIM_INFINITY:
        yield Line("locked memory", WARN, f"limited to {locked / MB:.0f} MB, and InfiniBand needs it unlimited",
                   "ask whoever runs this machine (`memlock` in /etc/security/limits.conf; in Docker --ulimit memlock=-1)")  # fmt: skip


def _processes():
    """Processes and threads that may still be started: a launch of 8 workers on a large node starts about 500."""
    own = sum(process.info["num_threads"] or 0 for process in psutil.process_iter(["uids", "num_threads"])
              if process.info["uids"] and process.info["uids"].real == os.getuid())  # fmt: skip
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    left = [limit - own] if limit != resource.RLIM_INFINITY and os.getuid() != 0 else []  # root has no limit
    for text in host._cgroup_limits("pids.max", "pids", ["pids.max"]):
        left += [int(text) - own] if text.isdigit() else []
    if left and min(left) < 512:
        yield Line("processes", FAIL if min(left) < 64 else WARN, f"only {max(0, min(left))} more may be started, threads included",
                   "run `ulimit -u unlimited`, or start the container with a larger --pids-limit")  # fmt: skip


def disk():
    """Where a student's work, caches and temporary files go: there is room, and it can be written."""
    seen = set()
    for name, folder in (("home", Path.home()), ("temporary", Path(tempfile.gettempdir()))):
        if not folder.is_dir():
            yield Line("disk", FAIL, f"there is no {folder} ({name})", "set HOME or TMPDIR to a folder of yours")
            continue
        device = folder.stat().st_dev
        if device in seen:
            continue
        seen.add(device)
        free = shutil.disk_usage(folder).free
        said = f"{folder} has {free / GB:,.1f} GB free"
        cure = "remove what is not needed there" + (", or set TMPDIR to a larger disk" if name == "temporary" else "")
        problem = _why_not_written(folder)
        if problem:
            yield Line("disk", FAIL, f"nothing can be written to {folder} ({problem})", cure)
        elif free < 1 * GB:
            yield Line("disk", FAIL if free < 0.1 * GB else WARN, said, cure)
        else:
            yield Line("disk", OK, said)


def _why_not_written(folder):
    """A quota is seen only where something is written."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1_000_000))
            file.flush()
    except OSError as error:
        return error.strerror
    return ""


def loopback():
    """All that workers of one machine say to each other goes through 127.0.0.1."""
    started = time.monotonic()
    try:
        name = network.loopback()
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            socket.create_connection(server.getsockname(), timeout=2).close()
    except (OSError, RuntimeError) as error:
        yield Line("loopback", FAIL, f"127.0.0.1 cannot be reached ({getattr(error, 'strerror', None) or error}), so that no worker "
                   "finds another", "run `ip link set lo up` as root, or let the firewall pass lo")  # fmt: skip
        return
    yield Line("loopback", OK, f"127.0.0.1 answers in {1e3 * (time.monotonic() - started):.1f} ms ({name})")


def names():
    """What torchrun, gloo outside of the course and Horovod look up as they start."""
    host_name = socket.gethostname()
    cure = f"add the line `127.0.1.1 {host_name}` to /etc/hosts; `launch` does without, torchrun does not"
    seconds, problem = _timed(socket.getaddrinfo, host_name, None)
    if problem:
        yield Line("host name", WARN, f"{host_name} has no address ({problem})", cure)
    elif seconds > LOOK_UP_S:
        yield Line("host name", WARN, f"looking up {host_name} takes {seconds:.1f} s", cure)
    else:
        yield Line("host name", OK, f"{host_name} is found in {1e3 * seconds:.0f} ms")
    seconds, problem = _timed(socket.getnameinfo, ("127.0.0.1", 1), 0)
    if problem or seconds > LOOK_UP_S:
        yield Line("loopback name", WARN, f"the name of 127.0.0.1 is not found within {LOOK_UP_S:.0f} s, and torchrun asks for it",
                   "add the line `127.0.0.1 localhost` to /etc/hosts, and `files` before `dns` in /etc/nsswitch.conf")  # fmt: skip


def _timed(look_up, *arguments):
    """(seconds, why it failed or ""); given up after twice the time that is still well."""
    answer = []

    def ask():
        try:
            look_up(*arguments)
            answer.append("")
        except OSError as error:
            answer.append(error.strerror or str(error))

    thread, started = threading.Thread(target=ask, daemon=True), time.monotonic()
    thread.start()
    thread.join(2 * LOOK_UP_S)
    return time.monotonic() - started, answer[0] if answer else "no answer"


def listening():
    """This user's servers that other machines can reach: Jupyter among them gives away everything its user has."""
    open_to_all = {}
    for process in psutil.process_iter(["name", "uids"]):
        try:
            if process.info["uids"].real != os.getuid() or "jupyter" not in " ".join(process.cmdline()):
                continue
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.ip not in ("127.0.0.1", "::1"):
                    open_to_all[process.pid] = f"{connection.laddr.ip}:{connection.laddr.port}"
        except (psutil.Error, AttributeError):
            continue
    for pid, address in open_to_all.items():
        yield Line("listening", WARN, f"a Jupyter of yours (process {pid}) listens on {address}, for other machines to reach",
                   "start it with --ServerApp.ip=127.0.0.1, as `make lab` does, and reach it through ssh -L")  # fmt: skip


def class_sharing():
    if os.environ.get("COURSE_SHARED") == "1":
        try:
            yield Line("shared node", OK, f"launches stand in line in {sharing._folder()}")
        except RuntimeError as error:
            said, _, cure = str(error).partition(": ")
            yield Line("shared node", FAIL, said, cure)


def _number(limit):
    return "any number" if limit == resource.RLIM_INFINITY else f"{limit:,}"


CHECKS = (machine, shared_memory, limits, disk, loopback, names, listening, class_sharing)
