"""The environment of the other frameworks: where it is, what it lacks, and how `launch` runs workers in it.

`make elsewhere` creates it in build/elsewhere, with the Python of the course's own environment. It never changes the
latter; only Horovod for PyTorch uses it, for its torch.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from .. import hardware
from ..launch.forkserver import handle
from ..launch.place import Place, inherited
from ..launch.watch.supervisor import Supervisor
from ..launch.worker import surroundings

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "elsewhere.lock"
STAMP = "course-stamp.json"
FRAMEWORKS = {
    "tensorflow": "TensorFlow",
    "horovod.torch": "Horovod for PyTorch",
    "horovod.tensorflow": "Horovod for TensorFlow",
}
# TensorFlow logs its instruction sets in every process; with oneDNN it rounds differently, by another order of
# additions.
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}


def folder():
    """Return the environment's folder: COURSE_ELSEWHERE if set, else build/elsewhere."""
    return Path(os.environ.get("COURSE_ELSEWHERE") or ROOT / "build" / "elsewhere").absolute()


def stamp():
    """Return what the environment was made from, or {} if it is missing or incomplete."""
    try:
        return json.loads((folder() / STAMP).read_text())
    except (OSError, ValueError):
        return {}


def wanted():
    """Return the versions from which an environment for this course must be made now."""
    found = {"python": sys.version.split()[0], "torch": hardware.torch_version()[0]}
    if LOCK.exists():
        found["requirements"] = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    return found


def problem(framework):
    """Return why `framework`, one of FRAMEWORKS, cannot run here, in one sentence, or None if it can."""
    name = FRAMEWORKS[framework]
    if not (folder() / "bin" / "python").exists():
        return f"{name} is not installed for this chapter: `make elsewhere` installs it."
    made = stamp()
    if not made:
        return "The environment of the other frameworks is half made: run `make elsewhere` again."
    now = wanted()
    if made.get("requirements") != now.get("requirements"):
        return (
            f"The environment of {name} was made from another list of versions: `make elsewhere` brings it up to date."
        )
    if made["python"] != now["python"]:
        return (
            f"The environment of {name} has Python {made['python']}, and this notebook has {now['python']}: "
            "`make elsewhere` makes it anew."
        )
    if framework not in made["frameworks"]:
        return f"{name} could not be built here: `make elsewhere` tries again and says why."
    if framework == "horovod.torch" and made["torch"] != now["torch"]:
        return (
            f"{name} was built for torch {made['torch']}, and torch is {now['torch']} now: `make elsewhere` builds it "
            "anew."
        )
    return None


@dataclass(frozen=True)
class Environment(Place):
    """`launch(…, on=Environment("tensorflow"))` runs workers in the other frameworks' interpreter, on this machine.

    Workers have torchrun's variables and no process group. A single process with TensorFlow uses GPUs if it was
    installed with CUDA; several processes, and Horovod, use the CPU. Raises RuntimeError if the framework is not
    available, ValueError if it is unknown.
    """

    framework: str

    def __post_init__(self):
        if self.framework not in FRAMEWORKS:
            raise ValueError(f"framework is {self.framework!r}; it can be {', '.join(FRAMEWORKS)}")
        if why := problem(self.framework):
            raise RuntimeError(why)

    def world_size(self, asked):
        return 1 if asked is None else asked

    def place(self, world_size, backend):
        if backend not in ("auto", None):
            raise ValueError(
                f"backend is {backend!r}, which is torch's: {FRAMEWORKS[self.framework]} has ways of its own"
            )
        on_gpu = (
            self.framework == "tensorflow"
            and world_size == 1
            and stamp()["cuda"]
            and hardware.choose_backend(1).device_type == "cuda"
        )
        note = f"{world_size} process{'es' * (world_size > 1)} with {FRAMEWORKS[self.framework]}"
        return hardware.Placement(None, "cuda" if on_gpu else "cpu", note, world_size)

    def shape(self, world_size, placement):
        raise ValueError(
            "what runs in another framework's environment has no program for torchrun: export is for launches in "
            "this one"
        )

    @contextlib.contextmanager
    def ranks(self, start):
        with inherited(start, None, self._of_its_own) as (_, _, fd), surroundings.folder() as temporary:
            yield Supervisor(handle.current(), start.world_size, temporary, fd, start.call_fd)

    def _of_its_own(self, captured):
        return dataclasses.replace(
            captured,
            python=str(folder() / "bin" / "python"),
            path=self._path(captured.path),
            environment=self._variables(captured.environment),
            settings={},  # of libraries that may be missing
        )

    def _path(self, path):
        """Return the entries of sys.path that are the notebook's own, without installed packages."""
        installed = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
        own = [entry for entry in path if not any(Path(entry).is_relative_to(each) for each in installed)]
        own = [entry for entry in own if not entry.endswith(".zip")]
        return own + [sysconfig.get_path("purelib")] * (self.framework == "horovod.torch")

    def _variables(self, environment):
        theirs = {name: value for name, value in environment.items() if not name.startswith("PYTHON")}
        theirs |= _QUIET | {"PATH": f"{folder() / 'bin'}{os.pathsep}{theirs['PATH']}", "VIRTUAL_ENV": str(folder())}
        if self.framework == "horovod.torch":
            # for processes that it starts itself
            theirs["PYTHONPATH"] = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])
        return theirs
