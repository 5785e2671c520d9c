"""A JupyterLab on loopback over a copy of the course, for one run of the browser check."""

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager

import nbformat

from course_utils.whole_files import write_whole
from tools import notebooks
from tools.lab import working_copy

START_TIMEOUT_S = 60
LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# No student settings and no news pop-ups, and every cell drawn at once: the default draws only cells in view, and a
# prompt that is not drawn cannot be read.
SETTINGS = {
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
PAGE_CONFIG = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}


class Trouble(Exception):
    """An error as one sentence for the user of the terminal."""


class Server:
    """A running JupyterLab: its address, token and notebook folder, and requests to it."""

    def __init__(self, url, token, folder):
        self.url, self.token, self.folder = url.rstrip("/"), token, folder

    def page_url(self, name):
        # A separate workspace: the default one would reopen the last notebook's tab.
        workspace, file = map(urllib.parse.quote, (name.removesuffix(".ipynb"), name))
        return f"{self.url}/lab/workspaces/{workspace}/tree/notebooks/{file}?token={self.token}"

    def ask(self, path, method="GET"):
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}/api/{path}", method=method, headers=headers)
        with LOCAL.open(request, timeout=30) as answer:
            return json.loads(answer.read() or "null")

    def kernel_is_ready(self):
        try:
            kernels = self.ask("kernels")
        except urllib.error.HTTPError:  # the server answers 500 while the last kernel is ending
            return False
        return any(kernel["execution_state"] == "idle" and kernel["connections"] for kernel in kernels)

    def notebook(self, name):
        content = self.ask(f"contents/notebooks/{urllib.parse.quote(name)}?type=notebook")["content"]
        return nbformat.from_dict(content)

    def end_kernels(self):
        """End this notebook's kernel, so that the next has the machine to itself."""
        try:
            for session in self.ask("sessions"):
                self.ask(f"sessions/{session['id']}", "DELETE")
        except urllib.error.URLError as error:
            print(f"(its kernel was left to the end: {error})", end=" ")


@contextmanager
def jupyterlab(folder, paths):
    """Run a JupyterLab on 127.0.0.1 over copies of the notebooks without outputs; yields a Server."""
    work = copy_course(folder / "course", paths)
    for name, content in SETTINGS.items():
        write_json(folder / "settings" / f"{name}.jupyterlab-settings", content)
    write_json(folder / "config/labconfig/page_config.json", PAGE_CONFIG)
    token = secrets.token_hex(24)
    env = _environment(folder, token)
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.port=0",
        f"--ServerApp.root_dir={work}",
        *(["--allow-root"] if os.geteuid() == 0 else []),
    ]
    log = folder / "server.log"
    with open(log, "wb") as file:
        # A separate session: Ctrl-C reaches only this program, which then ends the server cleanly.
        process = subprocess.Popen(
            command,
            cwd=work,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Server(wait_for_url(process, folder / "runtime", log), token, work / "notebooks")
    finally:
        process.terminate()  # the server ends its kernels, then itself
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment(folder, token):
    env = dict(os.environ) | {
        "JUPYTER_TOKEN": token,  # not on the command line, which every user can read
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "share"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "IPYTHONDIR": str(folder / "ipython"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(notebooks.ROOT), os.environ.get("PYTHONPATH")])),
    }
    # A person could be watching, so these must not apply, even in a test.
    for name in ("COURSE_STRICT", "COURSE_PANEL", "PYTEST_CURRENT_TEST"):
        env.pop(name, None)
    return env


def wait_for_url(process, runtime, log):
    """Wait for the server's runtime file and return the address with the port that the system chose."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            break
        info = runtime / f"jpserver-{process.pid}.json"
        try:
            url = json.loads(info.read_text())["url"]
            LOCAL.open(f"{url}api", timeout=5).close()
            return url
        except (OSError, ValueError):  # missing, half written, or not listening yet
            time.sleep(0.1)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise Trouble(f"JupyterLab did not start within {START_TIMEOUT_S} s; it said:\n{tail}")


def copy_course(work, paths):
    """Make a folder like the checkout, with notebooks copied without outputs and everything else linked.

    Without old outputs and counts, whatever the browser leaves comes from this run.
    """
    (work / "notebooks").mkdir(parents=True)
    for entry in notebooks.ROOT.iterdir():
        if entry.name not in ("notebooks", "build") and not entry.name.startswith("."):
            (work / entry.name).symlink_to(entry)
    for entry in notebooks.NOTEBOOKS.iterdir():
        if entry.suffix != ".ipynb" and not entry.name.startswith(".") and not entry.match(working_copy.PREDICTIONS):
            (work / "notebooks" / entry.name).symlink_to(entry)
    for path in paths:
        write_whole(working_copy.without_outputs(path), work / "notebooks" / path.name)
    return work


def write_json(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
