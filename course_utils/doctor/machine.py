"""Checks the system: memory, shared memory, limits, disk, loopback, host names and open servers."""

import errno
import ipaddress
import os
import resource
import shutil
import socket
import tempfile
import time
from pathlib import Path

import psutil

from ..hardware import describe, gpus, host, sharing
from ..processes import network
from . import FAIL, OK, WARN, Line, in_time

GB, MB = 1e9, 1e6
LOOK_UP_S = 1.0  # a longer look-up noticeably delays every torchrun


def machine():
    yield Line("machine", OK, describe())
    available = min(psutil.virtual_memory().available, host.memory_bytes())  # a job or container may have less
    if available < 2 * GB:
        yield Line(
            "memory",
            WARN,
            f"{available / GB:.1f} GB are free, and a worker takes 0.4 GB",
            "end what uses it, or start fewer workers",
        )


def shared_memory(folder="/dev/shm"):
    """Check the size of /dev/shm, through which DataLoaders pass batches and NCCL messages."""
    if not os.path.isdir(folder):
        return
    usage = shutil.disk_usage(folder)
    said = f"{usage.free / MB:,.0f} of {usage.total / MB:,.0f} MB are free"
    if usage.total < 1 * GB:
        cure = (
            "start the container with --shm-size=8g (Docker), or mount an emptyDir of medium Memory there (Kubernetes)"
        )
    else:
        cure = f"remove files of yours in {folder} that no process uses (`fuser` tells)"
    if usage.free < 64 * MB:
        yield Line(folder, FAIL, f"{said}: a DataLoader's workers, or NCCL, would end with a bus error", cure)
    elif usage.free < 1 * GB:
        yield Line(folder, WARN, f"{said}, which large batches fill", cure)
    else:
        yield Line(folder, OK, said)


def limits():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    can = (
        f"run `ulimit -n {min(hard, 4096) if hard != resource.RLIM_INFINITY else 4096}` in the shell that starts "
        "Jupyter"
    )
    ask = "ask whoever runs this machine for more (`nofile` in /etc/security/limits.conf)"
    if soft != resource.RLIM_INFINITY and soft < 1024:
        yield Line(
            "open files",
            FAIL if soft < 256 else WARN,
            f"a process may open {soft}, and 1,024 are usual",
            can if hard == resource.RLIM_INFINITY or hard >= 1024 else ask,
        )
    else:
        yield Line("open files", OK, f"a process may open {_number(soft)}")
    yield from _processes()
    space, most = resource.getrlimit(resource.RLIMIT_AS)
    needed = 64 * GB if gpus() else 8 * GB  # CUDA reserves more than it uses
    if space != resource.RLIM_INFINITY and space < needed:
        yield Line(
            "address space",
            FAIL if gpus() else WARN,
            f"limited to {space / GB:.0f} GB, and {needed / GB:.0f} GB may be reserved",
            "run `ulimit -v unlimited`"
            if most == resource.RLIM_INFINITY
            else "ask whoever runs this machine to raise the limit",
        )
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if locked != resource.RLIM_INFINITY and os.getuid() != 0 and _has_infiniband():
        yield Line(
            "locked memory",
            WARN,
            f"limited to {locked / MB:.0f} MB, and InfiniBand needs it unlimited",
            "ask whoever runs this machine (`memlock` in /etc/security/limits.conf; in Docker --ulimit memlock=-1)",
        )


def _processes():
    """Check how many processes and threads may be started: 8 workers on a large node start about 500."""
    own = sum(
        process.info["num_threads"] or 0
        for process in psutil.process_iter(["uids", "num_threads"])
        if process.info["uids"] and process.info["uids"].real == os.getuid()
    )
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    left = [limit - own] if limit != resource.RLIM_INFINITY and os.getuid() != 0 else []  # root has no limit
    most, now = (host.cgroup_limits(name, "pids", [name]) for name in ("pids.max", "pids.current"))
    left += [
        int(limit) - int(current) for limit, current in zip(most, now) if limit.isdigit() and len(most) == len(now)
    ]
    if left and min(left) < 512:
        yield Line(
            "processes",
            FAIL if min(left) < 64 else WARN,
            f"only {max(0, min(left))} more may be started, threads included",
            "end what you do not need; ask for a higher limit (nproc in /etc/security/limits.conf, --pids-limit "
            "of a container)",
        )


def _has_infiniband():
    layers = [path.read_text().strip() for path in Path("/sys/class/infiniband").glob("*/ports/*/link_layer")]
    return "InfiniBand" in layers and os.path.isdir("/dev/infiniband")


def disk():
    """Check that the folders of a student's work, caches and temporary files have space and can be written."""
    places = {"TMPDIR": Path(os.environ.get("TMPDIR") or "/tmp")}
    try:
        places = {"home": Path.home()} | places
    except RuntimeError:
        yield Line(
            "disk", WARN, "this user has no home folder, where settings and caches go", "set HOME to a folder of yours"
        )
    if os.environ.get("MY_COURSE"):
        places["MY_COURSE"] = Path(os.environ["MY_COURSE"])
    seen = set()
    for name, folder in places.items():
        there = next((each for each in (folder, *folder.parents) if each.is_dir()), Path("/"))
        problem = _why_not_written(there)
        free = shutil.disk_usage(there).free
        if problem in (errno.ENOSPC, errno.EDQUOT):
            yield Line(
                "disk",
                FAIL,
                f"nothing more can be written to {there} ({name}): {os.strerror(problem)}",
                _more_room(name),
            )
        elif problem:
            yield Line(
                "disk",
                FAIL,
                f"{there} ({name}) cannot be written: {os.strerror(problem)}",
                f"set {name if name.isupper() else 'HOME'} to a folder of yours",
            )
        elif free < 1 * GB:
            yield Line(
                "disk",
                FAIL if free < 0.1 * GB else WARN,
                f"{there} ({name}) has {free / GB:,.1f} GB free",
                _more_room(name),
            )
        elif there.stat().st_dev not in seen:
            yield Line("disk", OK, f"{there} has {free / GB:,.1f} GB free")
        seen.add(there.stat().st_dev)


def _more_room(name):
    return "remove what is not needed there" + (
        f", or set {name} to a folder on a larger disk" if name.isupper() else ""
    )


def _why_not_written(folder):
    """Return the errno of a test write, or 0; only writing shows whether a quota is used up."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1_000_000))
            file.flush()
    except OSError as error:
        return error.errno
    return 0


def loopback():
    """Check that 127.0.0.1 can be reached: the workers of one machine connect through it."""
    started = time.monotonic()
    try:
        name = network.loopback()
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            socket.create_connection(server.getsockname(), timeout=2).close()
    except (OSError, RuntimeError) as error:
        yield Line(
            "loopback",
            FAIL,
            f"127.0.0.1 cannot be reached ({getattr(error, 'strerror', None) or error}), so that no worker "
            "finds another",
            "run `ip link set lo up` as root, or let the firewall pass lo",
        )
        return
    yield Line("loopback", OK, f"127.0.0.1 answers in {1e3 * (time.monotonic() - started):.1f} ms ({name})")


def names():
    """Check the host-name look-ups that torchrun, Horovod, and gloo outside the course make at their start."""
    host_name = socket.gethostname()
    cure = (
        f"have `127.0.1.1 {host_name}` (on a cluster the node's own address) added to /etc/hosts; launch works "
        "without it, torchrun needs it"
    )
    seconds, problem = _timed(socket.getaddrinfo, host_name, None)
    if problem:
        yield Line("host name", WARN, f"{host_name} has no address ({problem})", cure)
    elif seconds > LOOK_UP_S:
        yield Line("host name", WARN, f"looking up {host_name} takes {seconds:.1f} s", cure)
    else:
        yield Line("host name", OK, f"{host_name} is found in {1e3 * seconds:.0f} ms")
    seconds, problem = _timed(socket.getnameinfo, ("127.0.0.1", 1), 0)
    if problem or seconds > LOOK_UP_S:
        yield Line(
            "loopback name",
            WARN,
            f"the name of 127.0.0.1 is not found within {LOOK_UP_S:.0f} s, and torchrun asks for it",
            "add the line `127.0.0.1 localhost` to /etc/hosts, and `files` before `dns` in /etc/nsswitch.conf",
        )


def _timed(look_up, *arguments):
    """Return (seconds, why the look-up failed or ""); it is abandoned after 2 × LOOK_UP_S seconds."""

    def ask():
        try:
            look_up(*arguments)
        except (OSError, UnicodeError) as error:  # a name of more than 63 letters cannot be encoded
            return getattr(error, "strerror", None) or str(error)
        return ""

    started = time.monotonic()
    answer = in_time(2 * LOOK_UP_S, ask)
    return time.monotonic() - started, answer[0] if answer else "no answer"


def listening():
    """Warn of this user's Jupyter servers that other machines can reach: they give access to all that the user has."""
    open_to_all = {}
    # JupyterHub reaches each user's server through the network.
    if any(name.startswith("JUPYTERHUB_") for name in os.environ):
        return
    for process in psutil.process_iter(["name", "uids"]):
        try:
            if process.info["uids"].real != os.getuid() or not _is_jupyter(process.cmdline()):
                continue
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN and not is_loopback(connection.laddr.ip):
                    open_to_all[process.pid] = f"{connection.laddr.ip}:{connection.laddr.port}"
        except (psutil.Error, AttributeError):
            continue
    for pid, address in open_to_all.items():
        yield Line(
            "listening",
            WARN,
            f"a Jupyter server of yours (process {pid}) listens on {address}, for other machines to reach",
            "start it with --ServerApp.ip=127.0.0.1, as `make lab` does, and reach it through ssh -L",
        )


def _is_jupyter(command):
    """Return whether a command line is a server's: jupyter-lab, python -m jupyterlab, python …/bin/jupyter-lab."""
    names = [os.path.basename(part) for part in command[:3]]
    return any(
        name.startswith(("jupyter-", "jupyterlab", "jupyterhub"))
        and not name.endswith(".py")
        or name in ("jupyter", "notebook")
        for name in names
    )


def is_loopback(address):
    address = ipaddress.ip_address(address.partition("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def class_sharing():
    if os.environ.get("COURSE_SHARED") == "1":
        try:
            yield Line("shared node", OK, f"launches take turns; their tickets are in {sharing.folder()}")
        except RuntimeError as error:
            said, _, cure = str(error).partition(": ")
            yield Line("shared node", FAIL, said, cure)


def _number(limit):
    return "any number" if limit == resource.RLIM_INFINITY else f"{limit:,}"


CHECKS = (machine, shared_memory, limits, disk, loopback, names, listening, class_sharing)
