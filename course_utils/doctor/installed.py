"""Checks what is installed: Python, packages at the versions that the course was tested with, data."""

import ast
import functools
import json
import os
import re
import sys
import tomllib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from ..hardware import builds
from . import FAIL, OK, WARN, Line

ROOT = Path(__file__).resolve().parents[2]


def python():
    said = f"{sys.version.split()[0]} ({'the .venv of the course' if is_own() else sys.prefix})"
    closed = None if _closed_to_others(ROOT) else _closed_to_others(Path(os.path.realpath(sys.executable)))
    if closed is None:
        yield Line("Python", OK, said)
    else:
        cure = "for a class on this installation, `make install PYTHON=/usr/bin/python3` takes the system's"
        yield Line("Python", WARN, f"{said}, which other users cannot run, since {closed} is closed to them", cure)


def _closed_to_others(path):
    """The first folder on the way to `path` that only its owner and group may enter, or None."""
    folders = [*reversed(path.parents), *([path] if path.is_dir() else [])]
    return next((each for each in folders if not each.stat().st_mode & 0o001), None)


def is_own():
    return Path(sys.prefix) == ROOT / ".venv"


def packages():
    """Compare the installed versions with the lock file."""
    lock = ROOT / "requirements" / "course.lock"
    if not lock.exists():
        yield Line("packages", OK, "installed without the course's checkout, so there is no lock file to compare with")
        return
    have = _installed()
    # Packages that come with torch's build are not compared, unless the course itself imports them.
    locked = {
        name: version
        for name, version in _locked(lock, _cuda()).items()
        if name in _direct() or not builds.comes_with_torch(name)
    }
    wrong = [
        f"{name} is {have[name]} instead of {version}"
        for name, version in locked.items()
        if name in have and have[name].partition("+")[0] != version.partition("+")[0]
    ]
    missing = [name for name in locked if name not in have]
    said = [f"{', '.join(wrong[:4])}{' …' if wrong[4:] else ''}"] * bool(wrong)
    said += [f"{', '.join(missing[:4])}{' …' if missing[4:] else ''} not installed"] * bool(missing)
    if said:
        cure = (
            "run `make install`, which brings .venv up to date"
            if is_own()
            else "`make lab` installs those that were tested together"
        )
        yield Line(
            "packages",
            FAIL if is_own() else WARN,
            f"{len(wrong) + len(missing)} differ from the lock file: {'; '.join(said)}",
            cure,
        )
    else:
        yield Line("packages", OK, f"{len(locked)} at the versions of the lock file")


def torch():
    """Check that torch and torchvision are builds of the same kind, since torch loads torchvision's operators."""
    again = "run `make clean` and `make install`" if is_own() else "install both again, from one index"
    found = {name: _version_file(name) for name in ("torch", "torchvision")}
    missing = [name for name, version in found.items() if version is None]
    if missing:
        yield Line("torch", FAIL, f"{' and '.join(missing)} not installed", again)
        return
    kinds = {name: version["__version__"].partition("+")[2] for name, version in found.items()}
    if all(kinds.values()) and len(set(kinds.values())) > 1:
        yield Line(
            "torch",
            FAIL,
            f"torch is a build of kind {kinds['torch']}, torchvision one of kind {kinds['torchvision']}",
            again,
        )
        return
    cuda = found["torch"].get("cuda")
    yield Line("torch", OK, f"{found['torch']['__version__']}, " + (f"for CUDA {cuda}" if cuda else "without CUDA"))


def _version_file(package):
    """Return the constants that a package's version.py defines, or None if there is no such package.

    The file is parsed, not run: torchvision's imports torch, which takes seconds, and minutes from a slow disk.
    """
    found = find_spec(package)
    if not (found and found.origin):
        return None
    tree = ast.parse((Path(found.origin).parent / "version.py").read_text())
    return {
        target.id: statement.value.value
        for statement in tree.body
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and isinstance(statement.value, ast.Constant)
        for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
        if isinstance(target, ast.Name)
    }


def data():
    """Check the bundled digits, which every chapter that trains needs, and the folder that COURSE_DATA names."""
    from ..data import files

    digits = files.DATA / "digits.npz"
    if not digits.is_file() or digits.stat().st_size < 10_000:
        yield Line(
            "data",
            FAIL,
            "data/digits.npz is missing or empty, and every chapter that trains needs it",
            "run `git checkout data/digits.npz` in the course's checkout",
        )
        return
    try:
        folders = files.folders()
        found = [name for name in files.DATA_SETS if any(files.is_there(name, folder) for folder in folders)]
    except NotADirectoryError as error:
        said, _, cure = str(error).partition("; ")
        yield Line("data", FAIL, said, cure)
        return
    if os.environ.get("COURSE_DATA") and not any(files.is_there(name, folders[0]) for name in files.DATA_SETS):
        yield Line(
            "data",
            WARN,
            f"COURSE_DATA is {os.environ['COURSE_DATA']!r}, and none of {', '.join(files.DATA_SETS)} is there",
            "put the data sets there as torchvision does, or unset it: chapters then download them or take the digits",
        )
        return
    others = f"also here: {', '.join(found)}" if found else "larger sets are downloaded where a chapter asks for one"
    yield Line("data", OK, f"the bundled digits; {others}")


def _cuda():
    """Return the CUDA version of the torch build that `make` has installed; "" if not known."""
    try:
        cuda = json.loads((Path(sys.prefix) / "course-stamp.json").read_text()).get("cuda", "")
        return cuda and builds.named(cuda).cuda
    except (OSError, ValueError):  # not installed by `make`
        return ""


def _locked(lock, cuda=""):
    """Return {project: version} of the lock file's lines whose markers hold on this machine.

    A build for an older CUDA has a file of its own, whose lines replace these; if the marker of such a line does not
    hold, the project is removed.
    """
    from packaging.requirements import Requirement

    own = cuda and builds.named(cuda).lock
    found = {}
    for file in [lock, lock.with_name(own)] if own else [lock]:
        for line in file.read_text().splitlines():
            text = line.partition("#")[0].strip()
            if text and not text.startswith("-"):
                requirement = Requirement(text)
                if requirement.marker is None or requirement.marker.evaluate():
                    found[_normal(requirement.name)] = next(iter(requirement.specifier)).version
                elif file != lock:
                    found.pop(_normal(requirement.name), None)
    return found


@functools.cache
def _installed():
    found = {}
    for each in metadata.distributions():
        if each.metadata["Name"]:  # the first on the path counts: setuptools appends packages of its own
            found.setdefault(_normal(each.metadata["Name"]), each.version)
    return found


def _direct():
    """Return the names of the course's own dependencies."""
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = asked["dependencies"] + asked["optional-dependencies"]["lab"]
    return {_normal(re.match("[A-Za-z0-9._-]+", line)[0]) for line in lines}


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


CHECKS = (python, packages, torch)
