"""No launch asks a name server: where that is slow or silent, every connection would take 5 s or 10 s."""

import os
import socket
import subprocess
import sys

import pytest

SCRIPT = """
import os
import socket

import torch.distributed as dist

from course_utils import launch

def talk():
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    dist.barrier()
    return dist.get_world_size()

asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asked.bind(("127.0.0.1", 53))
asked.setblocking(False)

def questions():
    count = 0
    while True:
        try:
            asked.recv(4096)
            count += 1
        except BlockingIOError:
            return count

def ask():
    try:
        socket.gethostbyname("a-name-that-only-a-server-knows.test")
    except OSError:
        return "not found"

if __name__ == "__main__":
    print(launch(talk, world_size=2).results, questions())
    print(launch(talk, world_size=2, backend=None).results, questions())
    print(launch(ask, world_size=1, backend=None).results, questions() > 0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a process a name server of its own")
def test_no_name_server_is_asked_while_ranks_connect(tmp_path):
    files = {
        "resolv.conf": "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n",
        "nsswitch.conf": "hosts: files dns\n",
    }
    mounts = []
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        mounts.append(f"mount --bind {tmp_path / name} /etc/{name}")
    (tmp_path / "script.py").write_text(SCRIPT)
    # In a mount namespace of its own, so that the machine's settings stay.
    begin = ["unshare", "--mount", "sh", "-ec", f'{"; ".join(mounts)}; exec "$@"', "sh"]
    if subprocess.run([*begin, "true"], capture_output=True).returncode:
        pytest.skip("a process cannot have mounts of its own here")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as port:
        try:
            port.bind(("127.0.0.1", 53))
        except OSError:
            pytest.skip("port 53 is taken here")
    done = subprocess.run([*begin, sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=100)
    # The last line shows that a name server that is asked is seen here.
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert lines == ["[2, 2] 0", "[2, 2] 0", "['not found'] True"], done.stdout + done.stderr
