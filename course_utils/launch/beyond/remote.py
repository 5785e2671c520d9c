"""On a node of a launch beyond this machine's own workers: torchrun's agent, and the ranks that it forks.

An agent is what the command `torchrun` runs (`elastic_launch`): it meets the agents of the other nodes, numbers the
ranks, starts those of its node and watches them. It forks them, since torch is imported already. What they say goes
into files (`folder`), and so does how each of them ended.
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
from .folder import Folder, FolderChannel

_LOST_S = 60.0  # without a sign of life from the notebook, after which an agent ends
_ARRIVE_S = 120.0  # until all agents are there
_CONNECT_S = 2.0
_HEED_S = 0.1
_UNTOLD = 3  # exit code of a guard that could not write down how its rank ended


def run_agent_of_rank(path: str) -> None:
    """Be an agent, as a worker of this machine's own: its rank is the node's number."""
    _run_agent(path, int(os.environ["RANK"]))


def run_agent_in_slurm(path: str) -> NoReturn:
    """Be the agent of a node of a Slurm job, and end the process with it.

    It is a fork of this process, which ends when Slurm asks it to, as submitit's would not, and takes the fork along.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        signal.signal(number, signal.SIG_DFL)
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
    _, status = os.waitpid(pid, 0)
    os._exit(0 if status == 0 else 1)  # without a result for submitit: the folder may be gone


def _run_agent(path, node):
    """Be the agent of `node`; return when its ranks have ended."""
    folder = Folder(path)
    job = folder.load("job")
    in_slurm = job.store is None
    linux.name_process(f"agent {node}")
    threading.Thread(target=_heed_notebook, args=(folder, node, in_slurm), daemon=True).start()
    # seconds, on all nodes at once: not only when there is a store to meet at
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
    except ChildFailedError as error:  # which the ranks have told, unless they could not
        untold = [rank for rank, failure in error.failures.items() if failure.exitcode == _UNTOLD]
        if untold:
            raise OSError(f"how rank {untold[0]} ended cannot be written to {folder.path}") from None


def _numbered(parameters):
    """torchrun's static rendezvous, at a store that is served already:
    nodes are numbered, and need not agree on it first.
    """
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
    """Start the rank that torchrun's environment names, wait for its end, and tell of it at once:
    torchrun takes seconds to.
    """
    linux.end_with_parent(agent_pid)
    # inherited from the agent, which says more than ends
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    rank, guard_pid = int(os.environ["RANK"]), os.getpid()
    linux.name_process(f"guard {rank}")
    pid = os.fork()
    if pid == 0:
        try:
            linux.end_with_parent(guard_pid)
            _be_rank(folder, rank, store, node, in_slurm)
        except BaseException as error:  # before it could say anything itself
            worker.tell_why_not(FolderChannel(folder, rank), error, time.time)
        finally:
            os._exit(1)  # not reached, but for a fault in the launcher itself
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    try:
        FolderChannel(folder, rank).send(Exited(None, rank, code, time.time()))
    except OSError:  # a full disk: the agent says so, who has another way to the notebook
        os._exit(_UNTOLD)
    if code:
        os._exit(1)


def _be_rank(folder, rank, store, node, in_slurm):
    """Be `rank` to the end of this process."""
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
        return lambda: join(placement.backend)

    appended = os.O_CREAT | os.O_APPEND | os.O_RDWR
    out, stacks = (folder.open(f"rank_{rank}.{kind}", appended) for kind in ("out", "stacks"))
    fds = WorkerFds(None, out, stacks, None, folder.open("call"))
    worker.serve(FolderChannel(folder, rank), fds, surround, now=time.time)


def _on_a_cluster(host, port):
    """Environment variables of a rank on a cluster: what a launch on one machine sets, with this node's network."""
    interface = _interface_towards(host, port)
    names = {
        name: interface for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface and name not in os.environ
    }
    threads = {} if os.environ.get("OMP_NUM_THREADS") else {"OMP_NUM_THREADS": "1"}
    return {"COURSE_IN_WORKER": "1", "TORCH_DIST_INIT_BARRIER": "1"} | threads | names


def _interface_towards(host, port):
    """The name of the network interface by which this node reaches `host`, or None."""
    import psutil

    with socket.create_connection((host, port), timeout=_CONNECT_S) as connection:
        address = connection.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return name
    return None


def _addresses():
    """This node's IPv4 addresses, the one first that its name stands for."""
    import psutil

    found = []
    with contextlib.suppress(OSError):
        found.append(socket.gethostbyname(socket.gethostname()))
    for addresses in psutil.net_if_addrs().values():
        found += [each.address for each in addresses if each.family == socket.AF_INET]
    return [address for address in dict.fromkeys(found) if not address.startswith("127.")]


def _reachable(folder):
    """Wait until node 0 has said where its store is, and return the address that answers from here, and the port."""
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
    """In a thread of an agent: have its ranks write down where they are when asked, and end when the notebook is done
    or gone.

    The files are opened again and again: on NFS that is when their newest content is fetched.
    """
    asked, lived, since = 0, None, time.monotonic()
    while time.monotonic() - since < _LOST_S:
        time.sleep(_HEED_S)
        if not folder.path.exists():
            os._exit(0)  # the launch is over, well or not; ranks that still run end with their agent
        asks, lives = (_content(folder, name) for name in ("ask", "alive"))
        if lives is not None and lives != lived:
            lived, since = lives, time.monotonic()
        if asks is not None and asks != asked:
            asked = asks
            _signal_ranks(folder, node)
        for out in folder.path.glob("rank_*.out") if in_slurm else ():
            with contextlib.suppress(OSError):
                fd = os.open(out, os.O_RDONLY)
                os.fsync(fd)  # on NFS others see it only then
                os.close(fd)
    shutil.rmtree(folder.path, ignore_errors=True)  # nobody will read it any more
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
