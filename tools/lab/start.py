"""Start JupyterLab on a student's copy of the notebooks, on this machine or in a Slurm job."""

import json
import os
import sys
from pathlib import Path

import zmq

from tools.lab import working_copy

FIRST = "00_start_here.ipynb"
CONFIGURATION = Path(__file__).resolve().parent / "jupyter"  # turns off news pop-ups
# JupyterLab's file name of its first workspace. The course has its own workspaces, apart from a student's others.
WORKSPACE = "default-37a8.jupyterlab-workspace"
LEFT = ("filebrowser", "running-sessions", "@jupyterlab/toc:plugin", "extensionmanager.main-view")


def make_copy(folder):
    """Make or update the copy, and print what a student should know about it."""
    is_new = not folder.exists()
    try:
        offered = working_copy.bring_up_to_date(folder)
        open_contents(folder)
    except OSError as error:
        sys.exit(
            f"\nYour copy of the notebooks could not be written to {folder} ({error.strerror}): mend that, or name "
            "another folder with MY_COURSE=."
        )
    if is_new:
        print(
            f"Your own copy of the notebooks is {folder}: what you write there stays as it is when the course changes."
        )
    for theirs, newer in offered:
        print(f"The course has a newer {theirs}: it lies beside yours as {newer}, and yours is as you left it.")


def open_contents(folder):
    """Make JupyterLab's first start show the table of contents on the left; later starts show what was open."""
    file = workspaces(folder) / WORKSPACE
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    left = {"collapsed": False, "visible": True, "current": LEFT[2], "widgets": LEFT}
    layout = {"main": {"dock": None, "current": None}, "left": left, "relativeSizes": [0.22, 0.78, 0]}
    file.write_text(json.dumps({"data": {"layout-restorer:data": layout}, "metadata": {"id": "default"}}))


def workspaces(folder):
    return folder / ".jupyterlab" / "workspaces"


def environment(folder):
    """The environment variables that JupyterLab is started with."""
    paths = filter(None, [str(CONFIGURATION), os.environ.get("JUPYTER_CONFIG_PATH")])
    return {"JUPYTER_CONFIG_PATH": os.pathsep.join(paths), "JUPYTERLAB_WORKSPACES_DIR": str(workspaces(folder))}


def command(folder, for_jupyter):
    """The command that starts JupyterLab; of what it logs only errors and its address are shown."""
    # The kernels complain where their messages are not encrypted.
    encrypted = ["--KernelManager.transport_encryption=auto"] if zmq.has("curve") else []
    return [
        sys.executable, "-m", "jupyterlab", "--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={folder}",
        f"--LabApp.default_url=/lab/tree/{FIRST}", "--Application.log_level=ERROR", *encrypted,
        *(["--allow-root"] if os.geteuid() == 0 else []), *for_jupyter,
    ]  # fmt: skip
