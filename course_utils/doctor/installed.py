"""What is installed: Python, packages at the versions that the course was tested with, data."""

import functools
import json
import os
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from ..hardware import builds
from . import FAIL, OK, WARN, Line

ROOT = Path(__file__).resolve().parents[2]


def python():
    version = sys.version.split()[0]
    if sys.version_info < (3, 11):
        yield Line("Python", FAIL, f"{version}, and the course needs 3.11 or newer", "run `make lab PYTHON=auto`, which brings one")
    else:
        yield Line("Python", OK, f"{version} ({'the .venv of the course' if Path(sys.prefix) == ROOT / '.venv' else sys.prefix})")


def packages():
    """Versions, held against the lock file that this installation was made from."""
    lock = ROOT / "requirements.lock"
    if not lock.exists():
        yield Line("packages", OK, "installed without the course's checkout, so there is no lock file to compare with")
        return
    locked, have = _locked(lock), _installed()
    wrong = [f"{name} is {have[name]} instead of {version}" for name, version in locked.items()
             if name in have and have[name].partition("+")[0] != version.partition("+")[0]]  # fmt: skip
    missing = [name for name in locked if name not in have and (name in _direct() or not builds.comes_with_torch(name))]
    said = [f"{', '.join(wrong[:4])}{' …' if wrong[4:] else ''}"] * bool(wrong)
    said += [f"{', '.join(missing[:4])}{' …' if missing[4:] else ''} not installed"] * bool(missing)
    if said:
        is_own = Path(sys.prefix) == ROOT / ".venv"
        cure = "run `make install`, which brings .venv up to date" if is_own else "`make lab` installs those that were tested together"
        yield Line("packages", FAIL if is_own else WARN, f"{len(wrong) + len(missing)} differ from the lock file: {'; '.join(said)}", cure)
    else:
        yield Line("packages", OK, f"{len(locked)} at the versions of the lock file")


def torch():
    """torch and torchvision are builds of one kind: torchvision's operators are loaded into torch."""
    have = _installed()
    kinds = {name: have.get(name, "").partition("+")[2] for name in ("torch", "torchvision")}
    if all(kinds.values()) and len(set(kinds.values())) > 1:
        yield Line("torch", FAIL, f"torch is a build of kind {kinds['torch']}, torchvision one of kind {kinds['torchvision']}",
                   "delete .venv, then run `make install`: both come from one index")  # fmt: skip
        return
    from ..hardware import torch_version

    version, cuda = torch_version()
    yield Line("torch", OK, f"{version}, " + (f"for CUDA {cuda}" if cuda else "without CUDA"))


def data():
    """The bundled digits, without which no chapter trains, and the folder that COURSE_DATA names."""
    digits = ROOT / "data" / "digits.npz"
    if not digits.is_file() or digits.stat().st_size < 10_000:
        yield Line("data", FAIL, "data/digits.npz is missing or empty, and every chapter that trains needs it",
                   "run `git checkout data/digits.npz` in the course's checkout")  # fmt: skip
        return
    from ..data import files

    try:
        found = [name for name in files.DATA_SETS if any(files.is_there(name, folder) for folder in files.folders())]
    except NotADirectoryError as error:
        said, _, cure = str(error).partition("; ")
        yield Line("data", FAIL, said, cure)
        return
    if not found and os.environ.get("COURSE_DATA"):
        yield Line("data", WARN, f"COURSE_DATA is {os.environ['COURSE_DATA']!r}, and none of {', '.join(files.DATA_SETS)} is there",
                   "put the data sets there as torchvision does, or unset it: chapters then download them or take the digits")  # fmt: skip
        return
    others = f"also here: {', '.join(found)}" if found else "larger sets are downloaded where a chapter asks for one"
    yield Line("data", OK, f"the bundled digits; {others}")


def _locked(lock):
    """{project: version} of the lines that hold on this machine, with those of the build for an older CUDA in their place."""
    from packaging.requirements import Requirement

    files = [lock]
    try:
        cuda = json.loads((Path(sys.prefix) / "course-stamp.json").read_text()).get("cuda", "")
        files += [lock.with_name(f"requirements-cuda{cuda}.lock")] if cuda and builds.named(cuda).backend else []
    except (OSError, ValueError):  # not made by `make`
        pass
    found = {}
    for file in files:
        for line in file.read_text().splitlines():
            text = line.partition("#")[0].strip()
            if text and not text.startswith("-"):
                requirement = Requirement(text)
                if requirement.marker is None or requirement.marker.evaluate():
                    found[_normal(requirement.name)] = next(iter(requirement.specifier)).version
    return found


@functools.cache
def _installed():
    return {_normal(each.metadata["Name"]): each.version for each in metadata.distributions() if each.metadata["Name"]}


def _direct():
    """What the course itself imports."""
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return {_normal(re.match("[A-Za-z0-9._-]+", line)[0]) for line in asked}


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


CHECKS = (python, packages, torch)
