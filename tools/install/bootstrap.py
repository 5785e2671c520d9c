"""Make or update .venv: python -m tools.install.bootstrap TORCH_INDEX CUDA, where both may be empty.

`make` runs this first, with a new enough Python. It imports the standard library alone, because nothing is installed
yet. A new .venv gets the build of PyTorch that the machine's driver and GPUs can run
(`course_utils/hardware/builds.py`), unless one is named.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

from tools.install import driver, pip_settings

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements" / "course.lock"
PYPROJECT = ROOT / "pyproject.toml"

# uv installs, and `make lock` resolves. It is kept out of .venv, since the course does not need it.
UV_PIN = "uv==0.13.9"
UV = ROOT / "build" / "uv" / "bin" / "uv"

# In .venv, so that uv can link unpacked files instead of copying them, whatever disk .venv is on.
CACHE = VENV / "uv-cache"

# Holds what .venv was made from, and is empty during an installation, so that an interrupted one never counts as done.
STAMP = VENV / "course-stamp.json"

# Loaded by path: its package imports modules that are not installed yet.
_spec = spec_from_file_location("builds", ROOT / "course_utils" / "hardware" / "builds.py")
builds = module_from_spec(_spec)
_spec.loader.exec_module(builds)

AGAIN = "then run the same command again: what has been downloaded is kept"


def main(torch_index="", cuda=""):
    try:
        cuda = cuda and builds.named(cuda).cuda
    except ValueError as error:
        fail(f"{error}.")
    if not may_write():
        return use_anothers()
    if VENV.is_dir() and any(VENV.iterdir()) and not STAMP.exists():
        fail(f"{VENV} was not made by `make`: move it away or delete it, then run the same command again.")
    VENV.mkdir(exist_ok=True)
    with STAMP.open("a+") as stamp:
        wait_for_others(stamp)
        made_from = read(stamp)
        refuse_anothers(made_from.get("root"))
        if not (torch_index or cuda):  # new names replace all earlier ones
            torch_index, cuda = made_from.get("torch_index", ""), made_from.get("cuda", "")
        if not (torch_index or cuda):
            cuda = choose_build()
            if made_from:  # before builds were chosen there was only the newest
                made_from["cuda"] = made_from.get("cuda") or builds.BUILDS[0].cuda
        wanted = {
            "files": digest(cuda),
            "root": str(ROOT),  # a virtual environment does not survive a move
            "torch_index": torch_index,
            "cuda": cuda,
        }
        usable = made_from and PYTHON.exists() and not another_python_is_named()
        if usable and made_from == wanted and UV.exists():
            print("Installed in .venv, and nothing has changed.", flush=True)
            return
        if usable and made_from | {"files": wanted["files"]} == wanted:
            print("Bringing .venv up to date with requirements/course.lock.", flush=True)
        else:
            make_venv(stamp, wanted["torch_index"])
        install(stamp, wanted["torch_index"], wanted["cuda"])
        write(stamp, wanted)
    print("Installed.", flush=True)


def may_write():
    return os.access(VENV if VENV.exists() else ROOT, os.W_OK)


def use_anothers():
    """Use another user's installation: students run what the lecturer installed, and cannot change it."""
    if not VENV.exists():
        fail(
            f"Nothing is installed in {ROOT}, and you may not write there: ask its owner to run `make install`, or "
            "clone the course into a folder of your own."
        )
    closed = closed_folder(PYTHON)
    if closed is not None and not closed.is_relative_to(VENV):
        fail(
            f"{VENV} was made with the Python {os.path.realpath(PYTHON)}, and {closed} is closed to you: ask its owner "
            "to run `make install PYTHON=/usr/bin/python3`, or with another Python that all may run."
        )
    if not os.access(PYTHON, os.X_OK):
        fail(
            f"{VENV} is not for you to use, or half made: ask its owner to run `make install` again, and then "
            f"`chmod -R a+rX {ROOT}`."
        )
    try:
        made_from = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        fail(f"The installation in {VENV} has not been finished: ask its owner to run `make install` again.")
    print(f"Using what its owner has installed in {VENV}.", flush=True)
    if made_from.get("files") != digest(made_from.get("cuda", "")):
        print("It is older than this version of the course: ask its owner to run `make install` again.", flush=True)


def closed_folder(path):
    """The first folder on the way to what `path` links to that this user may not enter, or None."""
    target = Path(os.path.realpath(path))
    return next((each for each in reversed(target.parents) if each.is_dir() and not os.access(each, os.X_OK)), None)


def digest(cuda):
    """The digest of the files that define the installation."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in (LOCK, PYPROJECT, *own_lock(cuda)))).hexdigest()


def choose_build():
    """Choose the CUDA version of PyTorch's build if none is named; prints which and why."""
    newest, found = builds.BUILDS[0], driver.ask()
    if found is None:
        named = " or ".join(f"CUDA={build.cuda}" for build in builds.BUILDS[1:])
        print(
            "No NVIDIA driver is here, so PyPI's build of PyTorch is taken. If other machines with older drivers or "
            f"GPUs will use it, name a build for them: {named}.",
            flush=True,
        )
        return newest.cuda
    choice = builds.choose(*found)
    if choice.build is None:
        print(
            f"NVIDIA {choice.why}: {choice.advice}. Until then everything runs on the CPU, with PyPI's build.",
            flush=True,
        )
        return newest.cuda
    print(f"NVIDIA {choice.why}.", flush=True)
    return choice.build.cuda


def own_lock(cuda):
    """A list of the file that replaces lines of course.lock, or an empty list."""
    lock = cuda and builds.named(cuda).lock
    return [LOCK.with_name(lock)] if lock else []


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


def refuse_anothers(root):
    """Refuse a .venv that links to another checkout's, since emptying it would break that checkout."""
    theirs = Path(root or ROOT) / ".venv"
    if root != str(ROOT) and theirs.exists() and theirs.samefile(VENV) and VENV.is_symlink():
        fail(
            f"{VENV} is a link to the environment of another checkout, {root}: remove the link, then run the same "
            "command again."
        )


def another_python_is_named():
    """Whether the user named a Python with PYTHON= and .venv was made with another."""
    return os.environ.get("PYTHON", "auto") not in ("", "auto") and PYTHON.resolve() != Path(sys.executable).resolve()


def make_venv(stamp, torch_index):
    """Start from scratch: a half-made environment cannot be told from a complete one."""
    write(stamp, {})
    for path in VENV.iterdir():  # one by one, because .venv may link to a larger disk
        if path not in (STAMP, CACHE):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    needed_gb = float(os.environ.get("COURSE_NEEDED_GB", 2.5 if torch_index.rstrip("/").endswith("cpu") else 6.8))
    kept_gb = sum(file.lstat().st_size for file in CACHE.rglob("*")) / 1e9
    free_gb = shutil.disk_usage(VENV).free / 1e9 + kept_gb
    if free_gb < needed_gb:
        fail(f"The installation needs about {needed_gb:.0f} GB, and {VENV} has {free_gb:.1f} GB free: make room first.")
    if not (find_spec("venv") and find_spec("ensurepip")):
        version = "{}.{}".format(*sys.version_info)
        fail(
            f"{sys.executable} comes without venv and ensurepip, which make .venv: install them (on Debian and Ubuntu "
            f"`sudo apt install python{version}-venv`), or name another Python with PYTHON=."
        )

    print(
        f"Making .venv with Python {sys.version.split()[0]} and installing into it. This takes a few minutes and "
        f"about {needed_gb:.0f} GB; it may be interrupted, and then starts again with what was downloaded.",
        flush=True,
    )
    if subprocess.run([sys.executable, "-m", "venv", VENV]).returncode:
        fail(f"{sys.executable} could not make a virtual environment in {VENV}: the lines above say why.")


def get_uv(stamp):
    try:
        if subprocess.check_output([UV, "--version"], text=True).split()[1] == UV_PIN.partition("==")[2]:
            return
    except (OSError, subprocess.CalledProcessError):
        pass  # missing or incomplete
    # One retry, so that a missing network is reported soon.
    pip = [
        PYTHON,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--retries",
        "1",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--upgrade",
        "--target",
        UV.parent.parent,
        UV_PIN,
    ]
    env = os.environ | {"PIP_USER": "0"}  # clusters set it, and pip refuses it with --target
    if subprocess.run(pip, env=env, pass_fds=[stamp.fileno()]).returncode:
        fail(
            f"The package index could not be reached, or does not offer {UV_PIN}: check the network, the proxy "
            f"settings and the address, {AGAIN}."
        )


def pins(file):
    """The lines of a file without comments: 'numpy==2.4.6 ; python_full_version < "3.12"'."""
    lines = (line.partition("#")[0].strip() for line in file.read_text().splitlines())
    return [line for line in lines if line]


def project(pin):
    return re.match("[A-Za-z0-9._-]+", pin)[0]


def install(stamp, torch_index, cuda):
    if torch_index or own_lock(cuda):
        # First everything unrelated to the build of torch, then torch from its own index, which knows what else that
        # build needs. A pin of 2.15.0 admits 2.15.0+cpu.
        own = [pin for file in own_lock(cuda) for pin in pins(file)]
        lines = [pin for pin in pins(LOCK) if project(pin) not in map(project, own)] + own
        torch = [pin for pin in lines if project(pin) in ("torch", "torchvision")]
        others = [pin for pin in lines if pin not in torch and (pin in own or not belongs_to_cuda_build(pin))]
        constraints = VENV / "constraints.txt"
        constraints.write_text("\n".join(lines) + "\n")
        source = ["--default-index", torch_index] if torch_index else ["--torch-backend", builds.named(cuda).backend]
        steps = [["--constraints", constraints, *others], [*source, *torch]]
    else:
        steps = [["--requirements", LOCK]]
    get_uv(stamp)
    subprocess.run([UV, "cache", "prune", "--quiet", "--cache-dir", CACHE])  # remains of interrupted downloads
    for step in steps:  # query each index in full before .venv is changed
        uv(stamp, *step, "--no-deps", "--dry-run")
    write(stamp, {})
    for step in steps:
        uv(stamp, *step)
    # setuptools is in the lock, so that building the course's package fetches nothing unpinned.
    uv(stamp, "--no-deps", "--no-build-isolation", "--editable", ROOT)


def belongs_to_cuda_build(pin):
    # such as nvidia-ml-py
    asked = tomllib.loads(PYPROJECT.read_text())["project"]
    named = {project(line) for line in asked["dependencies"] + asked.get("optional-dependencies", {}).get("lab", [])}
    return builds.comes_with_torch(project(pin)) and project(pin) not in named


def uv(stamp, *arguments, python=PYTHON):
    """Run uv pip install for `python` with its own progress bars; raises SystemExit with one sentence."""
    command = [
        UV,
        "pip",
        "install",
        "--python",
        python,
        "--cache-dir",
        CACHE,
        *arguments,
        "--index-strategy",
        "unsafe-best-match",  # the best version of any index, as pip does
        "--compile-bytecode",  # as pip does; else the first import of torch takes half a minute
        *(["--quiet"] if "--dry-run" in arguments or not sys.stdout.isatty() else []),
    ]
    # Use the system's certificates, as pip does: they include an institute's own.
    env = {"UV_SYSTEM_CERTS": "1"} | pip_settings.as_uv_variables(PYTHON) | os.environ
    # uv inherits the lock, in case this process is killed first.
    if subprocess.run(command, env=env, pass_fds=[stamp.fileno()]).returncode == 0:
        return
    print("Trying once more.", flush=True)
    second = subprocess.run(command, env=env, pass_fds=[stamp.fileno()], stderr=subprocess.PIPE, text=True)
    if second.returncode:
        index = next((f"TORCH_INDEX={a}" for a in arguments if "://" in str(a)), "The package index")
        if "--torch-backend" in arguments:
            index = "PyTorch's own index of builds for older CUDA versions"
        fail(reason(second.stderr, index))


def reason(said, index):
    """The sentence that explains uv's error output; `index` names the index it used."""
    if re.search("No space left|quota exceeded", said):
        return f"The disk filled up during the installation: make room for {VENV}, {AGAIN}."
    if re.search("Request failed|Failed to fetch|Failed to download|timed out", said):
        return f"{index} could not be reached: check the network, the proxy settings and the address, {AGAIN}."
    missing = re.search(r"No solution found.*you require ([^\s,]+)", said, re.DOTALL)
    if missing:
        return (
            f"No index offers {missing[1]} for Python {sys.version.split()[0]} on this machine: name another "
            "Python with PYTHON=, or another TORCH_INDEX=, and run the same command again."
        )
    return f"uv could not finish the installation, and its lines above say why: mend that, {AGAIN}."


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        fail("Interrupted: run the same command again to go on, what has been downloaded is kept.")
