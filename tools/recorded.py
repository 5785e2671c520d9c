"""Measurements that are kept: data/recorded/<machine>/<name>.json, each with what a reader needs to judge it."""

import json
import platform
import re
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path

from course_utils import hardware

ROOT = Path(__file__).resolve().parents[1]


def save(name, values, command):
    """Write `values` with machine, versions, date, commit and command; return the file's path."""
    machine = hardware.machine()
    folder = ROOT / "data" / "recorded" / re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    provenance = {
        "machine": machine,
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "torch": version("torch"),
        "date": date.today().isoformat(),
        "commit": _commit(),
        "command": command,
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"provenance": provenance, "values": values}, indent=1) + "\n")
    return path


def _commit():
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = "" if not git("status", "--porcelain", "course_utils") else ", with changes"
    return f"{git('rev-parse', '--short=12', 'HEAD')}{changed}"
