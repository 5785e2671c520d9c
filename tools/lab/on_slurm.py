"""JupyterLab as a Slurm job: submit it, wait until it answers, and explain how to connect.

It listens only on 127.0.0.1 of its node, with a token, so it is reached through an ssh tunnel.
"""

import getpass
import json
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import time

from tools.lab import start

POLL_S = 1.0


def run(arguments, folder, for_jupyter):
    """Submit the job with `arguments` for sbatch, and print its URL once it answers.

    An interrupt before that cancels the job.
    """
    if not shutil.which("sbatch"):
        sys.exit("\nThere is no Slurm on this machine (no command sbatch): leave SLURM= out, and JupyterLab runs here.")
    runtime = folder / ".jupyterlab" / f"job-{secrets.token_hex(4)}"
    runtime.mkdir(parents=True, mode=0o700)
    log = runtime / "log.txt"
    batch_file = script(folder, runtime, for_jupyter)
    done = subprocess.run(
        ["sbatch", "--parsable", f"--output={log}", *shlex.split(arguments)],
        input=batch_file,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = "; ".join(line.removeprefix("sbatch: error: ") for line in done.stderr.strip().splitlines())
        sys.exit(f"\nSlurm did not take the job: {said}")
    job = done.stdout.strip().partition(";")[0]
    print(f"Slurm has taken JupyterLab as job {job}; Ctrl-C cancels it.", flush=True)
    try:
        server = wait_for(job, runtime, log)
    except BaseException as error:
        subprocess.run(["scancel", job])
        if isinstance(error, KeyboardInterrupt):
            sys.exit(f"\nJob {job} is cancelled.")
        raise
    node, end = ask(job, "%N"), ask(job, "%e")
    port, user = server["port"], getpass.getuser()
    print(f"""
JupyterLab runs on {node} until {end}. On your own computer, keep this running:

    ssh -N -L {port}:127.0.0.1:{port} -J {user}@{socket.getfqdn()} {user}@{node}

and open there

    http://127.0.0.1:{port}/lab?token={server["token"]}

If ssh does not find the login node by that name, put in the one that you use. `scancel {job}` ends JupyterLab.""")


def script(folder, runtime, for_jupyter):
    """The text of the batch file."""
    variables = start.environment(folder) | {"JUPYTER_RUNTIME_DIR": str(runtime)}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    command = shlex.join(start.command(folder, ["--no-browser", "--ServerApp.port=0", *for_jupyter]))
    return "\n".join(
        [
            "#!/bin/bash",
            "#SBATCH --job-name=jupyterlab --nodes=1 --ntasks=1",
            *lines,
            "unset XDG_RUNTIME_DIR  # the login node's, and not there on another",
            f"cd {shlex.quote(str(folder))}",
            f"exec {command}",
            "",
        ]
    )


def wait_for(job, runtime, log):
    """Wait until the server has written its address and return that; exits if the job ends first."""
    from course_utils.launch.beyond.slurm_job import HAS_NOT_ENDED  # imported here, since a local lab does not need it

    said = None
    while True:
        for file in runtime.glob("jpserver-*.json"):
            try:
                return json.loads(file.read_text())
            except ValueError:  # half written
                pass
        state, why = ask(job, "%T"), ask(job, "%r")
        if state is not None and state not in HAS_NOT_ENDED:
            lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
            sys.exit(f"\nJob {job} has ended without JupyterLab{': ' if lines else ''}{' / '.join(lines[-3:])}")
        now = (
            "Slurm does not answer"
            if state is None
            else f"Job {job}: {state.lower()}" + (f" ({why})" if state == "PENDING" and why != "None" else "")
        )
        if now != said:
            print(now, flush=True)
        said = now
        time.sleep(POLL_S)


def ask(job, what):
    """Query squeue about a job by format letter; "" if the job is no longer known, None if squeue fails."""
    done = subprocess.run(["squeue", "--noheader", f"--job={job}", f"--format={what}"], capture_output=True, text=True)
    return None if done.returncode and "Invalid job id" not in done.stderr else done.stdout.strip()
