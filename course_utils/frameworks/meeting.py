"""How other frameworks' processes find one another on this machine, and how one is kept quiet."""

import logging
import os
import random
import re
import socket
import subprocess
import threading
import time
import warnings
from pathlib import Path

_PORTS = range(20_000, 32_000)  # below the usual ephemeral ports
_MEET_S = 60.0


def two_devices():
    """Return the names of two devices, GPUs or halves of the CPU; for a worker with TensorFlow.

    Call it before TensorFlow has computed anything.
    """
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(False)  # full float32, as everywhere in the course
    if len(tf.config.list_physical_devices("GPU")) >= 2:
        return ["GPU:0", "GPU:1"]
    halves = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], halves)
    return ["CPU:0", "CPU:1"]


def hush(package):
    """In a worker: turn off warnings, and what the loggers of `package` say below an error."""
    warnings.simplefilter("ignore")
    for name in [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == package]:
        logging.getLogger(name).setLevel(logging.ERROR)


def free_ports(count):
    """Return `count` free ports of this machine, for a framework that must be told its ports in advance.

    Raises RuntimeError if there are too few.
    """
    found = []
    for port in random.sample(_PORTS, len(_PORTS)):  # random, as another notebook may look too
        if len(found) == count:
            return found
        with socket.socket() as each:
            try:
                each.bind(("0.0.0.0", port))
            except OSError:
                continue
        found.append(port)
    raise RuntimeError(f"this machine has no {count} free ports between {_PORTS.start} and {_PORTS.stop}")


def horovodrun(*arguments):
    """Run the command `horovodrun` in a worker with Horovod; return its ranks' output as [(rank, line)], by rank.

    Raises RuntimeError with the end of its stderr if it fails.
    """
    run = subprocess.run(["horovodrun", *map(str, arguments)], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"horovodrun ended with exit code {run.returncode}: {run.stderr[-2000:]}")
    lines = re.findall(r"^\[(\d+)\]<stdout>:(.*)", run.stdout, re.MULTILINE)
    return sorted(((int(rank), line) for rank, line in lines), key=lambda pair: pair[0])


def meet_for_horovod(folder):
    """Set up Horovod in a worker of `launch`, before `hvd.init()`, as horovodrun does for its processes.

    It sets Horovod's variables from torchrun's. Rank 0 runs Horovod's store in a thread and writes its port into
    `folder`, which must be empty and visible to all ranks. Raises TimeoutError if rank 0 does not start it.
    """
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    os.environ.update(
        HOROVOD_RANK=rank, HOROVOD_SIZE=size, HOROVOD_LOCAL_RANK=rank, HOROVOD_LOCAL_SIZE=size,
        HOROVOD_CROSS_RANK="0", HOROVOD_CROSS_SIZE="1", HOROVOD_HOSTNAME="127.0.0.1",
        HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo", HOROVOD_GLOO_IFACE=os.environ["GLOO_SOCKET_IFNAME"],
        HOROVOD_GLOO_RENDEZVOUS_ADDR="127.0.0.1",
    )  # fmt: skip
    path = Path(folder) / "horovod_port"
    if rank == "0":
        port = _serve(int(size))
        path.with_suffix(".new").write_text(str(port))
        path.with_suffix(".new").rename(path)  # atomic: readers never see half a file
    deadline = time.monotonic() + _MEET_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"rank 0 did not serve Horovod's store within {_MEET_S:.0f} s: has it called meet_for_horovod?"
            )
        time.sleep(0.02)
    os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = path.read_text()


def _serve(size):
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    # horovodrun's own server listens on all addresses of the machine.
    server = RendezvousHTTPServer(("127.0.0.1", 0), RendezvousHandler, verbose=0)
    server.init(get_host_assignments(parse_hosts(f"127.0.0.1:{size}"), size))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port
