"""Open JupyterLab on this user's copy of the notebooks: `make lab`.

    python -m tools.lab [--slurm="--gpus=1 --time=2:00:00"] [arguments for JupyterLab]

It listens on 127.0.0.1 alone and asks for its token. With --slurm it runs as a job on a cluster node, and this command
prints how to reach it; the value is passed to sbatch.
"""

import argparse
import getpass
import os
import re
import shutil
import socket
import subprocess
import sys

from tools.lab import on_slurm, start, working_copy

ANSWER_S = 5.0  # for Slurm's controller


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--slurm", default="", metavar="ARGUMENTS", help="run it as a job of Slurm; they go to sbatch")
    options, for_jupyter = parser.parse_known_args(argv)
    folder = working_copy.place()
    start.make_copy(folder)
    if options.slurm:
        return on_slurm.run(options.slurm, folder, for_jupyter)
    if "SLURM_JOB_ID" not in os.environ and not os.path.exists("/dev/nvidia0") and slurm_answers():
        print(
            'Slurm is here and no GPU: `make lab SLURM="--gpus=1 --time=2:00:00"` opens JupyterLab on a GPU node '
            "instead."
        )
    what = f"JupyterLab on {folder / start.FIRST}, for this machine alone; Ctrl-C twice stops it."
    if "--no-browser" in for_jupyter:
        port, for_jupyter = with_port(for_jupyter)
        print(f"Starting {what}\n{from_elsewhere(port)}", flush=True)
    else:
        print(f"Opening {what}", flush=True)
    os.environ.update(start.environment(folder))
    os.execv(sys.executable, start.command(folder, for_jupyter))


def with_port(for_jupyter):
    """Return the port at which JupyterLab will listen, 0 if it is to choose one, and its arguments with that port."""
    asked = re.search(r"--(?:ServerApp\.)?port[= ](\d+)", " ".join(for_jupyter))
    if asked:
        return int(asked[1]), for_jupyter
    for port in range(8888, 9888):  # the first is JupyterLab's usual one
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:  # somebody else's
            continue
        return port, [f"--ServerApp.port={port}", *for_jupyter]
    return 0, for_jupyter


def from_elsewhere(port):
    """Say how a browser on another computer reaches this machine's loopback."""
    port = port or "PORT"
    named = "" if port != "PORT" else ", with the address's number in place of PORT"
    return f"""
For a browser on another computer, keep this running there{named}:

    ssh -N -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.getfqdn()}

with the name by which you reach this machine, if that is another. Then open there the address below."""


def slurm_answers():
    """Return whether this machine submits jobs to a cluster, rather than only having Slurm's commands."""
    if not shutil.which("sbatch"):
        return False
    try:
        return bool(subprocess.run(["sinfo", "--noheader"], capture_output=True, timeout=ANSWER_S).stdout)
    except (OSError, subprocess.TimeoutExpired):
        return False


if __name__ == "__main__":
    main()
