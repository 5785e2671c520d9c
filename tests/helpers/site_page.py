"""The pages of a course, built without a network and served on loopback, for tests that read them in a browser."""

import contextlib
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import nbformat

from tools import notebooks

README = """# A course

| | chapter |
|---|---|
| | **I. All of it** |
| 19 | [Choosing](notebooks/19_choosing.ipynb) |

| | |
|---|---|
| [On a cluster](docs/clusters.md) | |
| [Contributing](CONTRIBUTING.md) | |
| [For lecturers](docs/lecturers.md) | |
"""


def offline():
    """The start of a command that runs it without a network, where the system allows that."""
    without = ["unshare", "--net"]
    return without if shutil.which("unshare") and not subprocess.run([*without, "true"]).returncode else []


def small_course(folder):
    """Write a course of one chapter, whose site is built in seconds, and return its folder."""
    (folder / "notebooks" / "solutions").mkdir(parents=True)
    (folder / "notebooks" / "programs").mkdir()
    (folder / "docs").mkdir()
    (folder / "README.md").write_text(README)
    (folder / "CONTRIBUTING.md").write_text("# Contributing\n")
    plan = "[Plan a job](../tools/site/planner/plan.md): see [for lecturers](lecturers.md)."
    (folder / "docs" / "clusters.md").write_text(f"# On a cluster\n\n{plan}\n")
    (folder / "docs" / "lecturers.md").write_text("# For lecturers\n\nAn exam question.\n")
    (folder / "notebooks" / "glossary.md").write_text("# Glossary\n")
    (folder / "notebooks" / "solutions" / "19_choosing.py").write_text("# %%\n1 + 1\n")
    (folder / "notebooks" / "programs" / "ddp.py").write_text("1 + 1\n")
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# 19. Choosing")])
    notebooks.write(nb, folder / "notebooks" / "19_choosing.ipynb")
    return folder


def build(course, folder, *what):
    """Build the "site", the "slides" or both in `folder`, and return the folder of each."""
    printed_by_build(course, folder, *what)
    return [folder / each for each in what]


def printed_by_build(course, folder, *what, solutions=True):
    """Build as `build` does, and return what that prints.

    In one process, whose imports are a good part of what slides cost.
    """
    program = "import sys; from pathlib import Path; from tools.site.__main__ import build; "
    program += "course, folder = map(Path, sys.argv[1:3]); "
    program += (
        f"[build(what, course, folder / f'{{what}}_source', folder / what, {solutions}) for what in sys.argv[3:]]"
    )
    command = [*offline(), sys.executable, "-c", program, str(course), str(folder), *what]
    done = subprocess.run(command, cwd=notebooks.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
