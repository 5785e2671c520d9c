"""Make .venv, or bring it up to date: python tools/bootstrap.py [TORCH_INDEX]

`make` runs this before anything else, with a Python that is new enough. It imports the standard
library alone, because nothing is installed yet.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements.lock"
PYPROJECT = ROOT / "pyproject.toml"
LOG = ROOT / "build" / "install.log"

# Holds what .venv was made from, and is empty while an installation runs: one that was interrupted, however
# roughly, never counts as done.
STAMP = VENV / "course-stamp.json"

AGAIN = "then run the same command again: what has been downloaded is kept"


def main(torch_index=""):
    if VENV.is_dir() and any(VENV.iterdir()) and not STAMP.exists():
        fail(f"{VENV} was not made by `make`: move it away or delete it, then run the same command again.")
    VENV.mkdir(exist_ok=True)
    with STAMP.open("a+") as stamp:
        wait_for_others(stamp)
        made_from = read(stamp)
        wanted = {
            "files": hashlib.sha256(LOCK.read_bytes() + PYPROJECT.read_bytes()).hexdigest(),
            "root": str(ROOT),  # a virtual environment does not survive a move
            "torch_index": torch_index or made_from.get("torch_index", ""),
        }
        if made_from == wanted and PYTHON.exists():
            print("Installed in .venv, and nothing has changed.", flush=True)
            return
        if made_from and PYTHON.exists() and made_from | {"files": wanted["files"]} == wanted:
            print("Bringing .venv up to date with requirements.lock.", flush=True)
        else:
            make_venv(stamp, wanted["torch_index"])
        check_index(wanted["torch_index"])
        write(stamp, {})
        install(wanted["torch_index"], stamp)
        write(stamp, wanted)
    print("Installed.", flush=True)


def fail(sentence):
    sys.exit(f"\n{sentence}")


def wait_for_others(stamp):
    try:
        fcntl.flock(stamp, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Another `make` is installing into .venv: waiting for it to finish.", flush=True)
        fcntl.flock(stamp, fcntl.LOCK_EX)
    except OSError:
        pass  # some network file systems have no locks


def read(stamp):
    stamp.seek(0)
    try:
        return json.load(stamp)
    except ValueError:
        return {}


def write(stamp, made_from):
    stamp.truncate(0)
    if made_from:
        json.dump(made_from, stamp)
    stamp.flush()


def make_venv(stamp, torch_index):
    """Begin anew: a half-made environment cannot be told from a whole one file by file."""
    write(stamp, {})
    for path in VENV.iterdir():  # one by one, because .venv may be a link to a larger disk
        if path != STAMP:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    needed_gb = 2.5 if torch_index.rstrip("/").endswith("cpu") else 6.8
    if os.stat(tempfile.gettempdir()).st_dev == os.stat(VENV).st_dev:
        needed_gb *= 1.4  # what pip downloads lies there until it is unpacked
    needed_gb = float(os.environ.get("COURSE_NEEDED_GB", needed_gb))
    free_gb = shutil.disk_usage(VENV).free / 1e9
    if free_gb < needed_gb:
        fail(f"The installation needs about {needed_gb:.0f} GB, and {VENV} has {free_gb:.1f} GB free: make room first.")
    if not (find_spec("venv") and find_spec("ensurepip")):
        version = "{}.{}".format(*sys.version_info)
        fail(f"{sys.executable} comes without venv and ensurepip, which make .venv: install them (on Debian and Ubuntu "
             f"`sudo apt install python{version}-venv`), or name another Python with PYTHON=.")

    print(f"Making .venv with Python {sys.version.split()[0]} and installing into it. This takes a few minutes and "
          f"about {needed_gb:.0f} GB; it may be interrupted, and then starts again with what was downloaded.",
          flush=True)
    if subprocess.run([sys.executable, "-m", "venv", VENV]).returncode:
        fail(f"{sys.executable} could not make a virtual environment in {VENV}: the lines above say why.")


def check_index(torch_index):
    """Ask each index for one package, so that a missing network is said at once and not after minutes of retries."""
    indexes = [("The package index", pins()[0], [])]
    if torch_index:
        indexes.append((f"TORCH_INDEX={torch_index}", "torch", ["--index-url", torch_index]))
    for index, pin, options in indexes:
        package = re.split("[=; ]", pin)[0]
        # Not `pip install --dry-run`: it downloads the whole wheel from an index without separate metadata.
        answer = subprocess.run(
            [PYTHON, "-m", "pip", "index", "versions", package, "--retries", "1", "--timeout", "20", *options],
            capture_output=True, text=True,
        )
        if answer.returncode:
            fail(f"{index} could not be reached, or does not offer {package}: check the network, the proxy settings "
                 f"and the address, {AGAIN}.")


def pins():
    """The lock's lines without comments: 'numpy==2.4.6 ; python_full_version < "3.12"'."""
    lines = (line.partition("#")[0].strip() for line in LOCK.read_text().splitlines())
    return [line for line in lines if line]


def install(torch_index, stamp):
    LOG.parent.mkdir(exist_ok=True)
    LOG.unlink(missing_ok=True)  # pip appends
    if torch_index:
        # First all that has nothing to do with the build of torch, then torch from its own index, which knows
        # best what else that build needs. A pin of 2.15.0 admits 2.15.0+cpu.
        torch = [pin for pin in pins() if re.match("torch(vision)?==", pin)]
        others = [pin for pin in pins() if pin not in torch and not belongs_to_cuda_build(pin)]
        pip(stamp, "--constraint", LOCK, *others)
        pip(stamp, "--index-url", torch_index, *torch)
    else:
        pip(stamp, "--requirement", LOCK)
    # setuptools is in the lock, so that nothing unpinned is fetched to build the course's own package.
    pip(stamp, "--no-deps", "--no-build-isolation", "--editable", ROOT)


def belongs_to_cuda_build(pin):
    name = pin.partition("==")[0]
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    own = {re.match("[a-z0-9-]+", line)[0] for line in project["dependencies"]}  # nvidia-ml-py, for one
    return name.startswith(("nvidia-", "cuda-", "triton")) and name not in own


def pip(stamp, *arguments):
    """pip install, with its own progress bars; raises SystemExit with one sentence."""
    quiet = [] if sys.stdout.isatty() else ["--quiet", "--progress-bar", "off"]
    process = subprocess.run(
        [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--log", LOG, *quiet, *arguments],
        env=os.environ | {"PIP_USER": "0"},  # clusters set it, and pip refuses it in a virtual environment
        pass_fds=[stamp.fileno()],  # pip holds the lock too, should this process be killed before it
    )
    if process.returncode == 0:
        LOG.unlink(missing_ok=True)  # 30 MB
        return
    log = LOG.read_text(errors="replace")[-8000:] if LOG.exists() else ""
    missing = re.search(r"No matching distribution found for (\S+)", log)
    if "No space left on device" in log:
        fail(f"The disk filled up during the installation: make room for .venv and for pip's downloads, {AGAIN}.")
    if re.search("Connection|Timeout|timed out|Retrying", log):
        fail(f"The network failed during the installation: check it, {AGAIN}.")
    if missing:
        fail(f"No index offers {missing[1]} for Python {sys.version.split()[0]} on this machine: name another Python "
             "with PYTHON=, or another TORCH_INDEX=, and run the same command again.")
    fail(f"pip could not finish the installation: its last lines above say why, and {LOG} holds all it said.")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        fail("Interrupted: run the same command again to go on, what has been downloaded is kept.")
