"""Make or update the environments of chapter 15's other frameworks, in build/: `make elsewhere`.

First the small one, by tools/install/trainers.py. Then build/elsewhere: TensorFlow is installed from
requirements/elsewhere.lock. Horovod's last release is older than current torch and TensorFlow, so it is built from
source, adapted as in `ADAPTED`. Chapter 15 then runs for real.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

from course_utils.frameworks import environment
from course_utils.hardware import gpus
from tools.install import bootstrap, trainers

ROOT = bootstrap.ROOT
FOLDER = environment.folder()
PYTHON = FOLDER / "bin" / "python"
STAMP = FOLDER / environment.STAMP
HOROVOD = ROOT / "requirements" / "horovod.txt"
SOURCE = FOLDER / "horovod"
LOG = FOLDER / "horovod.log"
NEEDED_GB = 2.3
NEEDED_WITH_CUDA_GB = 9.0
AGAIN = "then run `make elsewhere` again"

# Changes to Horovod 0.28.1. torch 2.15 and TensorFlow 2.21 need C++20. Even with torch's CUDA build only the CPU is
# supported, without a CUDA toolkit. XLA operations need headers that TensorFlow's package no longer has.
ADAPTED = (
    ("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    ("horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    ("horovod/tensorflow/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 17)", "set(CMAKE_CXX_STANDARD 20)"),
    ("cmake/Modules/FindPytorch.cmake",
     "print(True if ((torch.version.cuda is not None) and (CUDA_HOME is not None)) else False)", "print(False)"),
    ("horovod/tensorflow/CMakeLists.txt",
     'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")', ""),
)  # fmt: skip
OPTIONS = {
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_CPU_OPERATIONS": "GLOO",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITH_TENSORFLOW": "1",
}
# Skip the CUDA toolkit, and debugging symbols, which would take longer than the code.
CMAKE = """#!/bin/sh
[ "$1" = --build ] && exec {cmake} "$@"
exec {cmake} -DCMAKE_CUDA_COMPILER= -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON \\
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O2 -DNDEBUG" "$@"
"""


def main():
    trainers.install()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with STAMP.open("a+") as stamp:
        fcntl.flock(stamp, fcntl.LOCK_EX)
        made, wanted = bootstrap.read(stamp), environment.wanted() | {"cuda": bool(gpus()), "root": str(ROOT)}
        frameworks = made.pop("frameworks", {})
        if made == wanted and sorted(frameworks) == sorted(environment.members("elsewhere")):
            print(f"Installed in {trainers.shown(FOLDER)}, and nothing has changed.")
            return
        if made | {"torch": wanted["torch"]} != wanted:
            install_tensorflow(stamp, wanted)
        frameworks = {"tensorflow": environment.version("elsewhere", "tensorflow", "tensorflow-cpu")}
        bootstrap.write(stamp, wanted | {"frameworks": frameworks})  # even if Horovod fails
        build_horovod(stamp)
        frameworks |= dict.fromkeys(
            ("horovod.torch", "horovod.tensorflow"), environment.version("elsewhere", "horovod")
        )
        bootstrap.write(stamp, {})
        bootstrap.write(stamp, wanted | {"frameworks": frameworks})
    if not (ROOT / "tools" / "solved.py").exists():  # the course as students get it
        print("Installed: chapter 15 runs with it.")
        return
    print("Installed. Running chapter 15 with it.", flush=True)
    sys.exit(subprocess.run([sys.executable, "-m", "tools.solved", "15"], cwd=ROOT).returncode)


def install_tensorflow(stamp, wanted):
    """Install TensorFlow from scratch; raises SystemExit with one sentence."""
    bootstrap.write(stamp, {})
    for path in FOLDER.iterdir():
        if path != STAMP:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    needed_gb = NEEDED_WITH_CUDA_GB if wanted["cuda"] else NEEDED_GB
    trainers.require_room(FOLDER, needed_gb)
    print(
        f"Installing TensorFlow into {trainers.shown(FOLDER)}: it downloads about "
        f"{'3 GB' if wanted['cuda'] else '0.4 GB'}; then Horovod is built for some minutes. In the end it has about "
        f"{needed_gb:.0f} GB.",
        flush=True,
    )
    venv.create(FOLDER, symlinks=True)
    pins = bootstrap.pins(environment.lock("elsewhere"))
    if wanted["cuda"]:
        pins = [re.sub("^tensorflow-cpu", "tensorflow[and-cuda]", pin) for pin in pins]
    bootstrap.uv(stamp, *pins, python=PYTHON)


def build_horovod(stamp):
    """Build and install Horovod; raises SystemExit with one sentence."""
    works = "TensorFlow is installed, and its half of the chapter works already"
    if not shutil.which("g++"):
        bootstrap.fail(
            "Horovod has to be built, and there is no C++ compiler: install one (on Debian and Ubuntu `sudo apt "
            f"install g++`), {AGAIN}. {works}."
        )
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        version = "{}.{}".format(*sys.version_info)
        bootstrap.fail(
            f"Horovod has to be built, and Python's headers are not here: install them (on Debian and Ubuntu `sudo apt "
            f"install python{version}-dev`), {AGAIN}. {works}."
        )
    unpack(stamp)
    print(
        f"Building Horovod for torch and TensorFlow, for some minutes; {trainers.shown(LOG)} has what the compiler "
        "says.",
        flush=True,
    )
    with LOG.open("w") as log, torch_is_seen():
        built = subprocess.run(
            [PYTHON, "setup.py", "-q", "bdist_wheel"],
            cwd=SOURCE,
            env=build_environment(),
            stdout=log,
            stderr=log,
            pass_fds=[stamp.fileno()],
        )
    if built.returncode:
        errors = [
            line.strip() for line in LOG.read_text(errors="replace").splitlines() if re.search("error:|Error ", line)
        ]
        bootstrap.fail(
            f"Horovod could not be built ({errors[0] if errors else 'its compiler was stopped'}): mend what "
            f"{trainers.shown(LOG)} says, {AGAIN}. {works}."
        )
    bootstrap.uv(stamp, "--no-deps", next((SOURCE / "dist").glob("*.whl")), python=PYTHON)
    shutil.rmtree(SOURCE)


def unpack(stamp):
    """Unpack and adapt Horovod's source in SOURCE."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    SOURCE.mkdir()
    quietly = "--quiet --disable-pip-version-check --retries 1".split()
    source = "--no-deps --no-build-isolation --no-binary :all: --require-hashes".split()
    pip = [sys.executable, "-m", "pip", "download", *quietly, *source, "--requirement", HOROVOD, "--dest", SOURCE]
    if subprocess.run(pip, pass_fds=[stamp.fileno()]).returncode:
        bootstrap.fail(f"Horovod's source could not be downloaded: check the network and the proxy settings, {AGAIN}.")
    with tarfile.open(next(SOURCE.glob("*.tar.gz"))) as archive:
        archive.extractall(SOURCE, filter="data")
    inner = next(path for path in SOURCE.iterdir() if path.is_dir())
    for path in inner.iterdir():
        path.rename(SOURCE / path.name)
    adapt()


def adapt():
    for name, old, new in ADAPTED:
        text = (SOURCE / name).read_text()
        if old not in text:
            bootstrap.fail(
                f"Horovod's {name} is not the one that tools/install/elsewhere.py adapts: restore "
                f"requirements/horovod.txt, {AGAIN}."
            )
        (SOURCE / name).write_text(text.replace(old, new))


@contextlib.contextmanager
def torch_is_seen():
    """Make the packages of the course's environment visible after this environment's own."""
    path = Path(environment.packages("elsewhere")) / "course.pth"
    path.write_text(sysconfig.get_path("purelib"))
    try:
        yield
    finally:
        path.unlink()


def build_environment():
    cmake = SOURCE / "course-cmake"
    cmake.write_text(CMAKE.format(cmake=FOLDER / "bin" / "cmake"))
    cmake.chmod(0o755)
    return os.environ | OPTIONS | {
        "HOROVOD_CMAKE": str(cmake), "MAKEFLAGS": f"-j{os.cpu_count()}",
        "PATH": f"{FOLDER / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        bootstrap.fail("Interrupted: run `make elsewhere` again to go on.")
