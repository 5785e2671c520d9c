"""The pages of a course, built without a network and served on loopback, for tests that read them in a browser."""

import contextlib
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

from tools import notebooks


def offline():
    """The start of a command that runs it without a network, where the system allows that."""
    without = ["unshare", "--net"]
    return without if shutil.which("unshare") and not subprocess.run([*without, "true"]).returncode else []


def build(course, folder, *what):
    """Build the "site", the "slides" or both in `folder`, and return the folder of each.

    In one process, whose imports are a good part of what slides cost.
    """
    program = "import sys; from pathlib import Path; from tools.site.__main__ import build; "
    program += "course, folder = map(Path, sys.argv[1:3]); "
    program += "[build(what, course, folder / f'{what}_source', folder / what) for what in sys.argv[3:]]"
    command = [*offline(), sys.executable, "-c", program, str(course), str(folder), *what]
    done = subprocess.run(command, cwd=notebooks.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [folder / each for each in what]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def served(folder):
    """Serve the folder; yields the server's address, without a slash at its end."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
