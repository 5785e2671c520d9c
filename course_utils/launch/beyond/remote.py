"""What runs on a node of `on=Nodes(…)` or `on=Slurm(…)`: torchrun's agent, and the ranks that it forks.

An agent is what the command `torchrun` runs (`elastic_launch`): it meets the agents of the other nodes, numbers the
ranks, starts those of its node and watches them. It forks them, since torch is imported already. Their messages and
exit codes go into files (`folder`).
"""

import contextlib
import os
import shutil
import signal
import socket
import threading
import time
import traceback
from typing import NoReturn

from ... import hardware
from ...processes import linux, network, payload
from ..forkserver import rendezvous
from ..forkserver.protocol import Exited, WorkerFds
from ..worker import settings, surroundings, worker
from .folder import Folder, RequestChannel, Writer

_LOST_S = 60.0  # without a sign of life from the notebook, after which an agent ends
_ARRIVE_S = 120.0  # until all agents are there
_CONNECT_S = 2.0
_HEED_S = 0.1
_UNTOLD = 3  # exit code of a guard that could not write its rank's exit code


def run_agent_of_rank(path: str) -> None:
    """Run as an agent in a worker of this machine, whose rank is the node's number."""
    _run_agent(path, int(os.environ["RANK"]))


def run_agent_in_slurm(path: str) -> NoReturn:
    """Run the agent of a node of a Slurm job in a fork, and end this process with it."""
    _heed_slurm()
    _, status = os.waitpid(_fork_agent(path), 0)
    os._exit(0 if status == 0 else 1)  # no result for submitit, whose folder may be removed


def hold_node_in_slurm(path: str) -> NoReturn:
    """Run one agent after another on a node of a Slurm job: whenever `path` names another folder, the agent for that.

    Ends when an agent has failed, when the notebook has removed `path`, or when it names no folder for a minute.
    """
    _heed_slurm()
    import torch.distributed.launcher.api  # noqa: F401  once, for all agents

    holder = Folder(path)
    name, pid, since = None, None, time.monotonic()
    while pid is not None or time.monotonic() - since < _LOST_S:
        if not holder.path.exists():
            os._exit(0)
        latest = _content(holder, "latest")
        if latest != name:
            if pid is not None:
                os.kill(pid, signal.SIGKILL)  # if it has not yet seen that its folder has gone
                os.waitpid(pid, 0)
            name, pid = latest, _fork_agent(str(holder.path / latest))
        ended, status = (0, 0) if pid is None else os.waitpid(pid, os.WNOHANG)
        if ended and status:
            break
        if ended:
            pid, since = None, time.monotonic()
        time.sleep(_HEED_S)
    shutil.rmtree(holder.path, ignore_errors=True)
    os._exit(1)


def _heed_slurm():
    """Have this process end at Slurm's SIGTERM, which submitit's handlers would not let it; its forks end with it.

    SIGUSR2, which submitit has Slurm send 90 s before the job's end, is ignored: its handler would end the job then.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _fork_agent(path):
    """Fork an agent for the folder `path`, and return its pid."""
    task_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            linux.end_with_parent(task_pid)
            _run_agent(path, int(os.environ["SLURM_NODEID"]))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def _run_agent(path, node):
    """Run as the agent of `node`; return when its ranks have ended."""
    folder = Folder(path)
    job = folder.load("job")
    in_slurm = job.store is None
    linux.name_process(f"agent {node}")
    threading.Thread(target=_heed_notebook, args=(folder, node, in_slurm), daemon=True).start()
    # Takes seconds: done before waiting for the store, so that all nodes do it at the same time.
    import torch.distributed.launcher.api  # noqa: F401

    serves = in_slurm and node == 0
    with rendezvous.store("") if serves else contextlib.nullcontext() as store:
        if serves:
            folder.dump("store", (_addresses(), socket.gethostname(), store.port))
        _agree(folder, job, node, job.store or _reachable(folder), in_slurm)


def _agree(folder, job, node, store, in_slurm):
    """Run torchrun's agent, which meets the others at `store`, (host, port)."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    host, port = store
    os.environ.update(job.gpus[node] if job.gpus else {})
    rendezvous_handler_registry.register("numbered", _numbered)
    config = LaunchConfig(
        min_nodes=job.nodes, max_nodes=job.nodes, nproc_per_node=job.workers_per_node,
        run_id=folder.path.name, rdzv_backend="numbered", rdzv_endpoint=f"{host}:{port}",
        rdzv_configs={"rank": node, "timeout": _ARRIVE_S},
        max_restarts=0, start_method="fork", local_addr=host if job.store else None,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder.path / f"agent_{node}")),
    )  # fmt: skip
    try:
        with network.names_from_files() if job.store else contextlib.nullcontext():
            elastic_launch(config, _guard_rank)(os.getpid(), folder, store, node, in_slurm)
    except ChildFailedError as error:  # the ranks' guards have reported it, unless they could not
        untold = [rank for rank, failure in error.failures.items() if failure.exitcode == _UNTOLD]
        if untold:
            raise OSError(f"how rank {untold[0]} ended cannot be written to {folder.path}") from None


def _numbered(parameters):
    """Return torchrun's static rendezvous for a store that is already served and nodes that are already numbered."""
    from torch.distributed import PrefixStore, TCPStore
    from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo, static_tcp_rendezvous

    class Numbered(static_tcp_rendezvous.StaticTCPRendezvous):
        def get_backend(self):
            return parameters.backend

        def next_rendezvous(self):
            endpoint = self.master_addr, self.master_port
            store = PrefixStore(self.run_id, TCPStore(*endpoint, is_master=False, timeout=self.timeout))
            return RendezvousInfo(store, self.rank, self.world_size, RendezvousStoreInfo(*endpoint))

    host, _, port = parameters.endpoint.rpartition(":")
    return Numbered(
        host,
        int(port),
        parameters.config["rank"],
        parameters.max_nodes,
        parameters.run_id,
        parameters.config["timeout"],
    )


def _guard_rank(agent_pid, folder, store, node, in_slurm):
    """Fork the rank that torchrun's environment names, wait for its end, and report it at once.

    torchrun would take seconds to report it.
    """
    linux.end_with_parent(agent_pid)
    # Reset the handlers inherited from the agent, which do more than end the process.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    rank, guard_pid = int(os.environ["RANK"]), os.getpid()
    linux.name_process(f"guard {rank}")
    pid = os.fork()
    if pid == 0:
        try:
            linux.end_with_parent(guard_pid)
            _be_rank(folder, rank, store, node, in_slurm)
        except BaseException as error:  # raised before the rank could report errors itself
            worker.tell_why_not(Writer(folder.of_rank(rank, "messages")), error, time.time)
        finally:
            os._exit(1)  # reached only by a bug in the launcher
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    try:
        Writer(folder.of_rank(rank, "messages")).send(Exited(None, rank, code, time.time()))
    except OSError:  # a full disk: the agent reports it, over another way to the notebook
        os._exit(_UNTOLD)
    if code:
        os._exit(1)


def _be_rank(folder, rank, store, node, in_slurm):
    """Run as `rank` to the end of this process."""
    linux.name_process(f"rank {rank}")
    folder.of_rank(rank, "pid").write_text(f"{node} {os.getpid()}")
    own = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("TORCHELASTIC_", "GROUP_", "ROLE_", "CUDA_"))
    }
    own |= {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    own |= {"MASTER_ADDR": store[0], "MASTER_PORT": str(store[1]), "TORCHELASTIC_USE_AGENT_STORE": "True"}

    def surround():
        taken, backend = payload.load(folder.open("surroundings"))
        if in_slurm:
            own.update(_on_a_cluster(*store))
        taken.restore(own)
        surroundings.begin_anew(None)
        settings.restore(taken.settings)
        join = rendezvous.prepare()
        if not in_slurm:
            return lambda: join(backend)
        placement = hardware.choose_backend(int(own["LOCAL_WORLD_SIZE"]), backend)
        os.environ["COURSE_DEVICE"] = placement.device_type
        if placement.device_type == "cpu":
            os.environ.setdefault("ACCELERATE_USE_CPU", "true")  # as on the notebook's machine
        return lambda: join(placement.backend)

    appended = os.O_CREAT | os.O_APPEND | os.O_RDWR
    out, stacks = (folder.open(f"rank_{rank}.{kind}", appended) for kind in ("out", "stacks"))
    fds = WorkerFds(None, out, stacks, None, folder.open("call"))
    serves = folder.load("job").serves_requests
    channel = RequestChannel(folder, rank) if serves else Writer(folder.of_rank(rank, "messages"))
    worker.serve(channel, fds, surround, now=time.time)


def _on_a_cluster(host, port):
    """Return environment variables of a rank on a cluster, with the network interface that reaches the store."""
    interface = _interface_towards(host, port)
    names = {
        name: interface for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface and name not in os.environ
    }
    threads = {} if os.environ.get("OMP_NUM_THREADS") else {"OMP_NUM_THREADS": "1"}
    return {"COURSE_IN_WORKER": "1", "TORCH_DIST_INIT_BARRIER": "1"} | threads | names


def _interface_towards(host, port):
    """Return the name of the network interface through which this node reaches `host`, or None."""
    import psutil

    with socket.create_connection((host, port), timeout=_CONNECT_S) as connection:
        address = connection.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return name
    return None


def _addresses():
    """Return this node's IPv4 addresses without loopback, first the one that its host name resolves to."""
    import psutil

    found = []
    with contextlib.suppress(OSError):
        found.append(socket.gethostbyname(socket.gethostname()))
    for addresses in psutil.net_if_addrs().values():
        found += [each.address for each in addresses if each.family == socket.AF_INET]
    return [address for address in dict.fromkeys(found) if not address.startswith("127.")]


def _reachable(folder):
    """Wait for the address of node 0's store, and return the (address, port) that this node can reach.

    Raises ConnectionError if there is none, and TimeoutError if node 0 does not publish it.
    """
    deadline = time.monotonic() + _ARRIVE_S
    while time.monotonic() < deadline:
        try:
            addresses, hostname, port = folder.load("store")
        except FileNotFoundError:
            time.sleep(0.05)
            continue
        for address in addresses + (["127.0.0.1"] if hostname == socket.gethostname() else []):
            with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=_CONNECT_S):
                return address, port
        raise ConnectionError(f"this node, {socket.gethostname()}, reaches none of {hostname}'s addresses {addresses}")
    raise TimeoutError(f"node 0 did not say within {_ARRIVE_S:g} s where its store is: it never arrived")


def _heed_notebook(folder, node, in_slurm):
    """Make ranks dump their stacks when asked, and end the process when the launch is over or the notebook has ended.

    Runs in a thread of the agent. It reopens the files each time, since NFS fetches new content only then.
    """
    asked, lived, since = 0, None, time.monotonic()
    while time.monotonic() - since < _LOST_S:
        time.sleep(_HEED_S)
        if not folder.path.exists():
            os._exit(0)  # the launch is over; ranks that still run end with their agent
        asks, lives = (_content(folder, name) for name in ("ask", "alive"))
        if lives is not None and lives != lived:
            lived, since = lives, time.monotonic()
        if asks is not None and asks != asked:
            asked = asks
            _signal_ranks(folder, node)
        for out in folder.path.glob("rank_*.out") if in_slurm else ():
            with contextlib.suppress(OSError):
                fd = os.open(out, os.O_RDONLY)
                os.fsync(fd)  # makes it visible to other NFS clients
                os.close(fd)
    shutil.rmtree(folder.path, ignore_errors=True)  # the notebook has ended
    os._exit(1)


def _content(folder, name):
    try:
        return folder.load(name)
    except OSError:
        return None


def _signal_ranks(folder, node):
    for file in folder.path.glob("rank_*.pid"):
        with contextlib.suppress(OSError, ValueError):
            its_node, pid = map(int, file.read_text().split())
            if its_node == node:
                os.kill(pid, worker.STACK_SIGNAL)
