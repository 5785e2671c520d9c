"""Make or update build/elsewhere_trainers, what chapter 15's trainers and JAX need besides the course's own packages.

`make elsewhere` calls `install`. Versions are those of requirements/trainers.lock, which keeps to course.lock's: what
the course has, such as torch, is not installed a second time.
"""

import fcntl
import os
import shutil
import sysconfig
import venv
from pathlib import Path

from course_utils.frameworks import environment
from tools.install import bootstrap

NAME = "trainers"
NEEDED_GB = 0.9


def install():
    """Make the environment, or bring it up to date; raises SystemExit with one sentence."""
    folder = environment.folder(NAME)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / environment.STAMP).open("a+") as stamp:
        fcntl.flock(stamp, fcntl.LOCK_EX)
        made, wanted = bootstrap.read(stamp), environment.wanted(NAME) | {"root": str(bootstrap.ROOT)}
        frameworks = made.pop("frameworks", {})
        if made == wanted and sorted(frameworks) == sorted(environment.members(NAME)):
            return
        bootstrap.write(stamp, {})
        require_room(folder, NEEDED_GB)
        for path in folder.iterdir():
            if path.name != environment.STAMP:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        print(
            "Installing Accelerate, Lightning, Transformers and JAX beside the course's packages: about 0.2 GB.",
            flush=True,
        )
        venv.create(folder, symlinks=True)
        bootstrap.uv(stamp, "--no-deps", *own_pins(), python=folder / "bin" / "python")
        # For programs that are started with this Python; workers of launch have the course's packages anyway.
        (Path(environment.packages(NAME)) / "course.pth").write_text(sysconfig.get_path("purelib"))
        found = {each: environment.version(NAME, each) for each in environment.members(NAME)}
        bootstrap.write(stamp, wanted | {"frameworks": found})


def own_pins():
    """Return the lines of trainers.lock of packages that the course's own environment does not have."""
    theirs = {bootstrap.project(pin) for pin in bootstrap.pins(bootstrap.LOCK)}
    return [pin for pin in bootstrap.pins(environment.lock(NAME)) if bootstrap.project(pin) not in theirs]


def require_room(folder, needed_gb):
    """Raise SystemExit, with one sentence, if the disk of `folder` has not that much free."""
    needed_gb = float(os.environ.get("COURSE_NEEDED_GB", needed_gb))
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb < needed_gb:
        bootstrap.fail(
            f"{shown(folder)} needs about {needed_gb:.0f} GB, and {free_gb:.1f} GB are free: make room first."
        )


def shown(path):
    return os.path.relpath(path, bootstrap.ROOT)
