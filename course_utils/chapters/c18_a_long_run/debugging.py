"""What the chapter's look at torch's tools for hanging jobs needs: records for torchfrtrace, and the debug server."""

import contextlib
import inspect
import os
import pickle
import re
import socket
import time
import urllib.error
import urllib.request

import psutil
from torch.distributed.flight_recorder.components import types


def for_torchfrtrace(record):
    """Return a dump of the CPU's flight recorder, bytes, such that torchfrtrace reads it.

    gloo leaves the default group's name empty where its entries call it "0" (torch 2.11 and 2.15), and torchfrtrace of
    torch 2.11 refuses entries that are not called nccl:….
    """
    dump = pickle.loads(record)
    groups = dump["pg_config"]
    if "" in groups:
        groups["0"] = groups.pop("") | {"name": "0"}
    if "gloo" not in inspect.getsource(types):
        for entry in dump["entries"]:
            entry["profiling_name"] = entry["profiling_name"].replace("gloo:", "nccl:")
    return pickle.dumps(dump)


def why_no_server():
    """Return in one sentence why the debug server is not started here, "" if it can be."""
    if os.environ.get("COURSE_SHARED"):
        return "The debug server is not started here: others share this node, and it listens on all interfaces."
    try:
        from torch.distributed.debug import _debug_handlers, _frontend  # noqa: F401
    except ImportError as error:
        return f"The debug server is not started here: it needs {error.name}, which is not installed."
    return ""


def free_port():
    with socket.socket(socket.AF_INET6) as found:
        found.bind(("::", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def unlogged():
    """Drop what this process, C++ and new children included, writes to its standard error: lines of the server's."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def pages(port):
    """Return the names of the pages that the debug server offers; wait for up to 20 s until it answers."""
    until = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as answer:
                return re.findall(r'<a href="/(\w+)"', answer.read().decode())
        except urllib.error.URLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def listening():
    """Return the addresses, such as [::]:25999, on which this process and its children listen for other machines."""
    here = psutil.Process()
    found = {each.laddr for process in (here, *here.children()) for each in process.net_connections("inet")
             if each.status == psutil.CONN_LISTEN}  # fmt: skip
    return sorted(f"[{address}]:{port}" for address, port in found if address in ("::", "0.0.0.0"))
