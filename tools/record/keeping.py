"""Write measurements with their provenance to data/recorded/<machine>/, and compare them."""

import json
import os
import platform
import re
import subprocess
import sys
import textwrap
from datetime import date
from importlib.metadata import version
from pathlib import Path

from course_utils import hardware
from course_utils.recorded import FOLDER, read
from course_utils.whole_files import write_whole

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 12  # of details per chapter
VERSIONS = ("system", "python", "torch", "cuda", "driver", "nccl")


def save(name, values, command, folder=FOLDER):
    """Write `values` with machine, versions, date, commit and command; return the file's path."""
    path = machine_folder(folder) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"provenance": provenance(command), "values": values}
    write_whole(json.dumps(content, indent=1, ensure_ascii=False) + "\n", path)
    return path


def save_chapter(chapter, values, command, folder=FOLDER):
    """Write `values`, {name: what the chapter kept}, as this machine's records of `chapter`, replacing the old ones.

    Returns the changes as lines.
    """
    before, damaged = {}, []
    for path in sorted(machine_folder(folder).glob(f"{chapter}_*.json")):
        try:
            before[path.stem.removeprefix(f"{chapter}_")] = read(path)
        except ValueError as error:
            damaged.append(f"not compared: {error}")
    written = {name: read(save(f"{chapter}_{name}", values[name], command, folder)) for name in values}
    for name in before.keys() - values.keys():
        (machine_folder(folder) / f"{chapter}_{name}.json").unlink()
    return damaged + compare(before, written)


def names_taken(chapter, names, folder=FOLDER):
    """A complaint for each of `names` that another chapter's record already uses, on any machine."""
    found = {
        name: path
        for name in names
        for path in sorted(Path(folder).glob(f"*/*{name}.json"))
        if path.stem == name or path.stem[2:] == f"_{name}" and path.stem[:2] != chapter
    }
    return [
        f"the name {name!r} is taken by {'/'.join(path.parts[-2:])}: keep it under another name, or delete that file"
        for name, path in found.items()
    ]


def machine_folder(folder=FOLDER, machine=None):
    """The folder of a machine's records, by default this one's: "2 × NVIDIA H200" → 2-nvidia-h200."""
    return Path(folder) / re.sub(r"[^a-z0-9]+", "-", (machine or hardware.machine()).lower()).strip("-")


def provenance(command):
    """Where and with what a measurement is made; `gpus` are the names of the GPUs that the course uses here."""
    # COURSE_DEVICE=cpu keeps the course off an existing GPU.
    gpus = hardware.gpus() if hardware.choose_backend(1).device_type == "cuda" else ()
    found = {
        "machine": hardware.machine(),
        "gpus": [gpu.name for gpu in gpus],
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "torch": version("torch"),
    }
    if gpus:
        import torch

        nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else ()
        found |= {"driver": gpus[0].driver, "cuda": torch.version.cuda, "nccl": ".".join(map(str, nccl)) or None}
    return found | {"date": date.today().isoformat(), "commit": commit(), "command": command}


def commit():
    """COURSE_COMMIT, which a copy of files on another machine is given, or the commit of this checkout."""
    if given := os.environ.get("COURSE_COMMIT"):
        return given

    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    try:
        changed = "" if not git("status", "--porcelain", "course_utils") else ", with changes"
        found = git("rev-parse", "--short=12", "HEAD")
    except FileNotFoundError:  # no git
        found, changed = "", ""
    return f"{found}{changed}" if found else "unknown"


def compare(before, after):
    """The changes between two dicts of {name: Record}, as lines: names, versions, then the largest changes first."""
    lines = [f"no longer kept, and deleted: {name}" for name in sorted(before.keys() - after.keys())]
    if first := sorted(after.keys() - before.keys()):
        lines.append(f"the first record of this machine: {', '.join(first)}")
    pairs = {name: (before[name], after[name]) for name in sorted(before.keys() & after.keys())}
    if not pairs:
        return lines
    since = {f"{old.provenance.get('date')} ({old.provenance.get('commit')})": None for old, _ in pairs.values()}
    return [*lines, f"against the record of {', '.join(since)}:", *(f"  {line}" for line in details(pairs))]


def details(pairs):
    """The changes between two records of each name: at most MAX_LINES, then a count of the rest."""
    old = {where: leaf for name, (record, _) in pairs.items() for where, leaf in leaves(record.values, name)}
    new = {where: leaf for name, (_, record) in pairs.items() for where, leaf in leaves(record.values, name)}
    versions = {
        f"{key} {then.provenance.get(key)} → {now.provenance.get(key)}": None
        for then, now in pairs.values()
        for key in VERSIONS
        if then.provenance.get(key) != now.provenance.get(key)
    }
    lines = [*versions, *listed("new", new.keys() - old.keys()), *listed("gone", old.keys() - new.keys())]
    changes = {where: relative_change(old[where], new[where]) for where in old.keys() & new.keys()}
    # Non-numbers come first, as inf; equal changes are sorted by name.
    changed = sorted((where for where in changes if changes[where]), key=lambda where: (-abs(changes[where]), where))
    lines += [f"{where}: {short(old[where])} → {short(new[where])}{percent(changes[where])}" for where in changed]
    rest = lines[MAX_LINES:]
    if rest:
        bound = percent(abs(changes[changed[-len(rest)]])) if len(rest) <= len(changed) else ""
        lines[MAX_LINES:] = [f"… and {len(rest)} more{bound and f', the largest{bound}'}"]
    if same := len(changes) - len(changed):
        lines.append(f"{same} as before")
    return lines


def leaves(value, where):
    """All values that are neither list nor dict, as (place, value): ("copy['GB/s'][3]", 10.1)."""
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, f"{where}[{key!r}]")
    else:
        yield where, value


def listed(what, places):
    if not places:
        return []
    return [f"{what}: {', '.join(sorted(places)[:3])}{f' and {len(places) - 3} more' if len(places) > 3 else ''}"]


def relative_change(old, new):
    if old == new and isinstance(old, bool) == isinstance(new, bool):
        return 0.0
    both_numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (old, new))
    return (new - old) / abs(old) if both_numbers and old else float("inf")


def percent(change):
    return "" if change == float("inf") else f" ({100 * change:+,.{0 if abs(change) >= 0.1 else 1}f} %)"


def short(value):
    return f"{value:.4g}" if isinstance(value, float) else textwrap.shorten(repr(value), 40)
