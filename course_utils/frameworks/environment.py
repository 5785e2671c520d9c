"""The environments of the other frameworks: where they are, what they lack, and how `launch` runs workers in them.

`make elsewhere` creates two in build/, with the Python of the course's own environment, and never changes the latter.
"elsewhere" has an interpreter with TensorFlow and Horovod; of the course's packages, Horovod for PyTorch uses torch.
"trainers" only adds packages to the course's own: its workers are forked as usual, with torch and a process group.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from .. import hardware
from ..launch.forkserver import handle
from ..launch.place import Place, inherited
from ..launch.watch.supervisor import Supervisor
from ..launch.worker import surroundings

ROOT = Path(__file__).resolve().parents[2]
STAMP = "course-stamp.json"
TRAINERS = {
    "accelerate": "Accelerate",
    "lightning": "Lightning",
    "transformers": "Transformers",
    "jax": "JAX",
}
FRAMEWORKS = {
    "tensorflow": "TensorFlow",
    "horovod.torch": "Horovod for PyTorch",
    "horovod.tensorflow": "Horovod for TensorFlow",
    **TRAINERS,
}
# TensorFlow logs its instruction sets in every process; with oneDNN it rounds differently, by another order of
# additions. Nothing here asks Hugging Face's hub.
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "HF_HUB_OFFLINE": "1"}


def home(framework):
    """Return the name of the environment in which `framework` is: "elsewhere" or "trainers"."""
    return "trainers" if framework in TRAINERS else "elsewhere"


def members(name):
    """Return the frameworks of the environment `name`."""
    return [framework for framework in FRAMEWORKS if home(framework) == name]


def folder(name="elsewhere"):
    """Return the folder of an environment: build/elsewhere, or COURSE_ELSEWHERE if set; "trainers" is beside it."""
    first = Path(os.environ.get("COURSE_ELSEWHERE") or ROOT / "build" / "elsewhere").absolute()
    return first if name == "elsewhere" else first.with_name(f"{first.name}_{name}")


def packages(name):
    """Return the folder of the packages of the environment `name`."""
    return sysconfig.get_path("purelib", vars={"base": str(folder(name))})


def lock(name):
    """Return the file with the versions of the environment `name`."""
    return ROOT / "requirements" / f"{name}.lock"


def version(name, *distributions):
    """Return the version of the first of `distributions` that is installed in the environment `name`."""
    found = [each for one in distributions for each in metadata.distributions(name=one, path=[packages(name)])]
    return found[0].version


def stamp(name="elsewhere"):
    """Return what an environment was made from, or {} if it is missing or incomplete."""
    try:
        return json.loads((folder(name) / STAMP).read_text())
    except (OSError, ValueError):
        return {}


def wanted(name="elsewhere"):
    """Return the versions from which an environment for this course must be made now."""
    found = {"python": sys.version.split()[0]}
    if name == "elsewhere":
        found["torch"] = hardware.torch_version()[0]
    if lock(name).exists():
        found["requirements"] = hashlib.sha256(lock(name).read_bytes()).hexdigest()
    return found


def problem(framework):
    """Return why `framework`, one of FRAMEWORKS, cannot run here, in one sentence, or None if it can."""
    name, where = FRAMEWORKS[framework], home(framework)
    if not (folder(where) / "bin" / "python").exists():
        return f"{name} is not installed for this chapter: `make elsewhere` installs it."
    made = stamp(where)
    if not made:
        return "The environment of the other frameworks is half made: run `make elsewhere` again."
    now = wanted(where)
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
    """`launch(…, on=Environment("tensorflow"))` runs workers with another framework, on this machine.

    TensorFlow's and Horovod's workers run in an interpreter of their own, with torchrun's variables and no process
    group. A single process with TensorFlow uses GPUs if it was installed with CUDA; all others use the CPU. The workers
    of TRAINERS are the course's own, with gloo, and find the framework's packages besides. Raises RuntimeError if the
    framework is not available, ValueError if it is unknown.
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
        joined = "gloo" if self.framework in TRAINERS and backend else None
        return hardware.Placement(joined, "cuda" if on_gpu else "cpu", note, world_size)

    def shape(self, world_size, placement):
        raise ValueError(
            "what runs in another framework's environment has no program for torchrun: export is for launches in "
            "this one"
        )

    @contextlib.contextmanager
    def ranks(self, start):
        change = self._with_packages if self.framework in TRAINERS else self._of_its_own
        with inherited(start, start.placement.backend, change) as (_, _, fd), surroundings.folder() as temporary:
            yield Supervisor(handle.current(), start.world_size, temporary, fd, start.call_fd)

    def _with_packages(self, captured):
        own = {name: value for name, value in captured.environment.items() if not name.startswith("PYTHON")}
        return dataclasses.replace(
            captured,
            path=[packages("trainers"), *captured.path],
            environment=own | self._command_path(own) | {"TORCH_EXTENSIONS_DIR": str(folder("trainers") / "built")},
        )

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
        theirs |= self._command_path(theirs)
        if self.framework == "horovod.torch":
            # for processes that it starts itself
            theirs["PYTHONPATH"] = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])
        return theirs

    def _command_path(self, environment):
        where = folder(home(self.framework))
        return _QUIET | {"PATH": f"{where / 'bin'}{os.pathsep}{environment['PATH']}", "VIRTUAL_ENV": str(where)}
