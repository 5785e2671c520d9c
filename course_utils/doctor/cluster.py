"""Checks Slurm, if it is installed."""

import os
import shutil
import subprocess

from . import OK, WARN, Line

ANSWER_S = 3.0


def slurm():
    if not shutil.which("sinfo"):
        return
    try:
        done = subprocess.run(
            ["sinfo", "--noheader", "--format=%R|%a|%D|%G"], capture_output=True, text=True, timeout=ANSWER_S
        )
        problem = (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"no answer within {ANSWER_S:.0f} s"
    if not os.environ.get("SLURM_CONF") and ("resolve_ctls" in problem or "configuration" in problem.lower()):
        yield Line("Slurm", OK, "installed, and configured for no cluster")
        return
    if problem:
        yield Line(
            "Slurm",
            WARN,
            f"its commands are here, and it does not answer ({problem.splitlines()[0]})",
            "ask whoever runs the cluster; without it everything but launch(on=Slurm(…)) works",
        )
        return
    rows = [line.split("|") for line in done.stdout.splitlines()]
    up = [
        f"{name} ({nodes} nodes{', ' + gres if gres != '(null)' else ''})"
        for name, state, nodes, gres in rows
        if state == "up"
    ]
    job = f"; this is job {os.environ['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in os.environ else ""
    yield Line("Slurm", OK, f"partitions {', '.join(up) or 'none'}{job}")


CHECKS = (slurm,)
