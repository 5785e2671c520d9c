"""`make` installs, resumes, and says in one sentence why it cannot; `make lab` is for this machine alone.

The installations are real ones, in a checkout of its own, of packages of an empty module from an index in a folder.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

import pytest

from tests.helpers import another_user
from tools.install import bootstrap

ROOT = Path(__file__).resolve().parents[3]

# Builds the checkout's own package; where a test asks for it, it stops in the middle for good.
BACKEND = """
import os, shutil
def get_requires_for_build_editable(config=None):
    return []
def build_editable(folder, config=None, metadata=None):
    if "STOP_AT" in os.environ:
        pipe = os.environ["STOP_AT"]
        open(pipe, "w").close()  # says that it is here
        open(pipe)  # waits for a writer, and none comes
    return os.path.basename(shutil.copy("course_utils-0-py3-none-any.whl", folder))
"""

# Read by each Python that has its folder on the path: `python -m venv` copies another environment's pip, since to
# install it takes longer than all else together.
COPIES_PIP = """
import os, shutil, sys
if sys.orig_argv[1:3] == ["-m", "venv"]:
    import venv
    def copy_pip(builder, context):
        for name in os.listdir({packages!r}):
            if name.startswith("pip"):
                to = os.path.join(context.env_dir, {inside!r}, name)
                shutil.copytree(os.path.join({packages!r}, name), to, dirs_exist_ok=True)
    venv.EnvBuilder._setup_pip = copy_pip
"""


def write_wheel(folder, name, version, requires=None, script=None):
    """A package of one empty module, and of a script of its own name where one is given."""
    stem = f"{name.replace('-', '_')}-{version}"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requires}"] if requires else []
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        info = f"{stem}.dist-info"
        wheel.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
        wheel.writestr(f"{name.replace('-', '_')}.py", "")
        if script:
            path = zipfile.ZipInfo(f"{stem}.data/scripts/{name}")
            path.external_attr = 0o100755 << 16  # pip asks whether it is a regular file, too
            wheel.writestr(path, script)


def offer(index, name, *version_and_more):
    """Put such a package into the index, a folder."""
    folder = index / name
    folder.mkdir(parents=True, exist_ok=True)
    write_wheel(folder, name, *version_and_more)
    (folder / "index.html").write_text("".join(f'<a href="{p.name}">{p.name}</a>' for p in folder.glob("*.whl")))


@pytest.fixture(scope="session")
def real_uv():
    with tempfile.TemporaryFile() as lock:
        bootstrap.get_uv(lock)
    return bootstrap.UV


class Checkout:
    """A checkout with an index of packages beside it; `copies_pip` is a folder with COPIES_PIP in it."""

    def __init__(self, folder, real_uv, copies_pip=None):
        self.root = folder / "checkout with spaces"
        self.venv = self.root / ".venv"
        self.index = folder / "simple"
        for file in (
            "Makefile",
            "tools/install/bootstrap.py",
            "tools/install/driver.py",
            "tools/install/find_python.sh",
            "tools/install/pip_settings.py",
            "course_utils/hardware/builds.py",
            "requirements/cuda12.6.lock",
            "requirements/cuda12.8.lock",
        ):
            (self.root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, self.root / file)
        (self.root / "backend.py").write_text(BACKEND)
        write_wheel(self.root, "course-utils", 0)
        (self.root / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
            '[project]\nname = "course-utils"\nversion = "0"\ndependencies = ["nvidia-ml-py", "torch"]\n'
        )
        self.lock("nvidia-ml-py==1", 'nvidia-blas==1 ; sys_platform == "linux"', "torch==2  # via course-utils")
        offer(self.index, "nvidia-ml-py", 1)
        offer(self.index, "nvidia-ml-py", 2)
        offer(self.index, "nvidia-blas", 1)
        offer(self.index, "torch", 2, "nvidia-blas")
        # The index's uv leads to the real one, which is larger than all tests together.
        self.uv_version = bootstrap.UV_PIN.partition("==")[2]
        offer(self.index, "uv", self.uv_version, None, f'#!/bin/sh\nexec "{real_uv}" "$@"\n')
        # Of the outer make's variables, too, none may come through: this test may run under `make test`.
        ours = ("PIP_", "UV_", "COURSE_", "MAKE", "MFLAGS", "PYTHON", "TORCH_INDEX")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        self.env |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": self.index.as_uri()}
        self.env |= {"PIP_RETRIES": "0", "UV_HTTP_RETRIES": "0"}  # who does not answer here never will
        if copies_pip:
            self.env["PYTHONPATH"] = str(copies_pip)
        self.programs = folder / "programs"  # before all others
        self.programs.mkdir()
        self.env["PATH"] = f"{self.programs}{os.pathsep}{self.env['PATH']}"

    def plays(self, name, said, code=0):
        """Let the program `name` print a text."""
        (self.programs / name).write_text(f"#!/bin/sh\ncat <<'E'\n{said}\nE\nexit {code}\n")
        (self.programs / name).chmod(0o755)

    def lock(self, *lines):
        (self.root / "requirements/course.lock").write_text("\n".join(lines) + "\n")

    def make(self, *arguments, **env):
        return subprocess.run(
            [shutil.which("make"), *arguments],
            cwd=self.root,
            env=self.env | env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )

    def installs(self, *arguments, **env):
        done = self.make("install", f"PYTHON={sys.executable}", *arguments, **env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refuses(self, *arguments, **env):
        """The sentence, which must be one, and the last word but for make's own."""
        done = self.make("install", *arguments, **env)
        assert done.returncode != 0 and "Traceback" not in done.stderr, done.stderr
        said = [line for line in done.stderr.splitlines() if line and not line.startswith("make")]
        return said[-1]

    def installed(self):
        code = "import importlib.metadata as m, json\nprint(json.dumps({d.name: d.version for d in m.distributions()}))"
        found = json.loads(subprocess.check_output([self.venv / "bin/python", "-c", code], cwd="/"))
        return {name: v for name, v in found.items() if name not in ("pip", "setuptools")}


@pytest.fixture(scope="module")
def kept(tmp_path_factory, real_uv):
    """A folder in which a checkout has been installed, what that has made and said, and COPIES_PIP with its pip."""
    folder = tmp_path_factory.mktemp("kept")
    checkout = Checkout(folder / "here", real_uv)
    (folder / "said").write_text(checkout.installs())
    for name in (".venv", "build"):
        shutil.move(checkout.root / name, folder / name)
    (packages,) = folder.glob(".venv/lib/*/site-packages")
    inside = packages.relative_to(folder / ".venv")
    (folder / "sitecustomize.py").write_text(COPIES_PIP.format(packages=str(packages), inside=str(inside)))
    return folder


@pytest.fixture
def checkout(tmp_path, kept, real_uv):
    return Checkout(tmp_path, real_uv, copies_pip=kept)


@pytest.fixture
def installed(kept, real_uv):
    """A checkout in which all is installed."""
    shutil.rmtree(kept / "here")
    checkout = Checkout(kept / "here", real_uv, copies_pip=kept)
    for name in (".venv", "build"):
        shutil.copytree(kept / name, checkout.root / name, symlinks=True)
    return checkout


def test_install_then_nothing_then_update(installed, kept):
    checkout = installed
    assert "Making .venv" in (kept / "said").read_text()
    assert checkout.installed() == {"nvidia-ml-py": "1", "nvidia-blas": "1", "torch": "2", "course-utils": "0"}
    assert list(checkout.venv.glob("lib/*/site-packages/__pycache__/torch.*.pyc"))

    # No index and no room are needed where nothing has changed.
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "COURSE_NEEDED_GB": "1e9"}
    assert checkout.installs(**nowhere) == "Installed in .venv, and nothing has changed.\n"

    mine = checkout.venv / "mine"
    mine.touch()
    checkout.lock("nvidia-ml-py==2", 'nvidia-blas==1 ; sys_platform == "linux"', "torch==2")
    sentence = checkout.refuses(f"PYTHON={sys.executable}", **nowhere)
    assert "could not be reached" in sentence
    assert "Bringing .venv up to date" in checkout.installs()
    assert checkout.installed()["nvidia-ml-py"] == "2" and mine.exists()

    checkout.root = checkout.root.rename(checkout.root.with_name("moved"))
    checkout.venv = checkout.root / ".venv"
    assert "needs about" in checkout.refuses(f"PYTHON={sys.executable}", **nowhere)  # which is asked of a new one only


def test_an_installation_from_before_builds_were_chosen_is_kept(installed):
    stamp = installed.venv / "course-stamp.json"
    stamp.write_text(json.dumps(json.loads(stamp.read_text()) | {"cuda": ""}))
    assert "nothing has changed" in installed.installs()


def test_indexes_of_pip_configuration(checkout, tmp_path):
    """Pip's configuration, which uv does not read, is passed on; the best version of any index is taken, as by pip."""
    offer(tmp_path / "more", "nvidia-ml-py", "1.post1")
    offer(tmp_path / "links", "torch", 2, "nvidia-blas")
    for name in ("nvidia-ml-py", "torch"):
        shutil.rmtree(checkout.index / name)
    offer(checkout.index, "nvidia-ml-py", 1)
    checkout.lock("nvidia-ml-py==1.*", "nvidia-blas==1", "torch==2")
    pip_conf = tmp_path / "pip.conf"
    pip_conf.write_text(
        "[global]\nindex-url = http://127.0.0.1:9/\n"
        f"extra-index-url =\n    {(tmp_path / 'more').as_uri()}\n    {(tmp_path / 'none').as_uri()}\n"
        f"find-links = {tmp_path / 'links/torch'}\n[install]\nindex-url = {checkout.index.as_uri()}\n"
    )
    del checkout.env["PIP_INDEX_URL"]
    checkout.installs(PIP_CONFIG_FILE=str(pip_conf))
    assert checkout.installed() == {"nvidia-ml-py": "1.post1", "nvidia-blas": "1", "torch": "2", "course-utils": "0"}


def test_another_python_makes_it_anew(installed, tmp_path):
    python = installed.venv / "bin/python"
    another = tmp_path / "python3"
    another.write_text(f'#!/bin/sh\nexec "{python.resolve()}" "$@"\n')
    another.chmod(0o755)
    python.unlink()
    python.symlink_to(another)  # as if .venv had been made with it
    unnamed = installed.make("install", PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert unnamed.stdout == "Installed in .venv, and nothing has changed.\n"
    assert "Making .venv with Python" in installed.installs()
    assert python.resolve() == Path(sys.executable).resolve()
    assert "nothing has changed" in installed.installs()


def test_another_index_for_torch(checkout, tmp_path):
    offer(tmp_path / "cpu", "torch", "2+cpu")
    checkout.installs(f"TORCH_INDEX={(tmp_path / 'cpu').as_uri()}")
    assert checkout.installed() == {"nvidia-ml-py": "1", "torch": "2+cpu", "course-utils": "0"}
    assert "nothing has changed" in checkout.installs()

    checkout.installs("CUDA=13")  # named now, it replaces the index that was named before
    assert checkout.installed() == {"nvidia-ml-py": "1", "nvidia-blas": "1", "torch": "2", "course-utils": "0"}

    sentence = checkout.refuses(f"PYTHON={sys.executable}", "TORCH_INDEX=http://127.0.0.1:9/cpu")
    assert re.match(r"TORCH_INDEX=http://127.0.0.1:9/cpu could not be reached.*check the network", sentence)


def offer_cuda_builds(checkout, tmp_path):
    """Another index with torch for CUDA 12.6, and what the locks name."""
    pins = dict(
        re.match(r"([\w.-]+)==([\w.]+)", line).groups()
        for line in bootstrap.pins(ROOT / "requirements/cuda12.6.lock")
        if "'none'" not in line
    )
    for name in ("torch", "torchvision"):
        offer(tmp_path / "cu126", name, f"{pins[name]}+cu126", "nvidia-blas-cu12" if name == "torch" else None)
    offer(tmp_path / "cu126", "nvidia-blas-cu12", 12)
    for name in pins.keys() - {"torch", "torchvision"}:
        offer(checkout.index, name, pins[name])
    offer(checkout.index, "cuda-bindings", "13.5")
    offer(checkout.index, "torchvision", "0.29.2")
    offer(checkout.index, "nvidia-nvvm", "13.5")
    checkout.lock(
        "nvidia-ml-py==1",
        "nvidia-blas==1",
        "torch==2",
        "torchvision==0.29.2",
        "cuda-bindings==13.5",
        "nvidia-nvvm==13.5",
    )
    own = {name: version for name, version in pins.items() if name not in ("torch", "torchvision")}
    return own | {"nvidia-ml-py": "1", "nvidia-blas-cu12": "12", "course-utils": "0", "torch": f"{pins['torch']}+cu126",
                  "torchvision": f"{pins['torchvision']}+cu126"}  # fmt: skip


def test_the_build_for_an_old_driver(checkout, tmp_path):
    """What CUDA 13 needs is neither installed nor kept, and what CUDA 12.6 needs takes its place."""
    expected = offer_cuda_builds(checkout, tmp_path)
    index = f"TORCH_INDEX={(tmp_path / 'cu126').as_uri()}"
    checkout.installs("CUDA=12.6", index, CUDA="/usr/local/cuda")
    assert checkout.installed() == expected
    assert "nothing has changed" in checkout.installs(CUDA="/usr/local/cuda")  # it is remembered
    assert "CUDA=11 is not to be had: choose CUDA=13 or CUDA=12.6 or CUDA=12.8" in checkout.refuses("CUDA=11")


def test_the_driver_is_asked_before_anything_is_installed(checkout, tmp_path):
    """The build is asked for from PyTorch's index, of which uv knows where it is; here nothing is reached."""
    checkout.plays("nvidia-smi", "550.54.15, 8.0\n550.54.15, 8.0")
    offer_cuda_builds(checkout, tmp_path)
    nowhere = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "UV_HTTP_RETRIES": "0"}
    done = checkout.make("install", f"PYTHON={sys.executable}", **nowhere)
    assert (
        "NVIDIA driver 550.54.15, compute capability 8.0: PyTorch 2.14 for CUDA 12.6, since builds for CUDA 13 "
        "need driver 580" in done.stdout
    )
    assert "PyTorch's own index of builds for older CUDA versions could not be reached" in done.stderr

    checkout.plays("nvidia-smi", "470.256.02, 8.0")
    done = checkout.make("install", f"PYTHON={sys.executable}")
    assert "update the driver to 525 or newer" in done.stdout and done.returncode == 0, done.stderr
    assert "torch" in checkout.installed()  # the build for the CPU works meanwhile


def test_a_driver_that_says_nothing_of_its_gpus(checkout):
    checkout.plays(
        "nvidia-smi", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", code=9
    )
    done = checkout.make("install", f"PYTHON={sys.executable}", COURSE_NEEDED_GB="1e9")
    assert "No NVIDIA driver is here" in done.stdout and "make room" in done.stderr


def test_a_python_is_brought_where_none_is_new_enough(checkout, tmp_path):
    """By uv, which the old Python's pip gets from the index, out of an archive that uv is told of."""
    for name in ("python3.14", "python3.13", "python3.12", "python3.11"):
        checkout.plays(name, "3.9")
    checkout.plays("python3", "3.9")
    old = checkout.programs / "python3"  # its pip works
    old.write_text(f'#!/bin/sh\n[ "$1" = -m ] && exec "{sys.executable}" "$@"\necho 3.9\n')
    sentence = checkout.refuses()
    assert "needs Python 3.11 or newer, and here python3 is 3.9" in sentence and "add PYTHON=auto" in sentence
    done = checkout.make("install", "PYTHON=auto", UV_PYTHON_DOWNLOADS_JSON_URL=str(python_archive(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert list(checkout.root.glob("build/python/cpython-3.*/bin/python3.*")), "uv has brought it"
    assert "torch" in checkout.installed()
    assert "nothing has changed" in checkout.make("install").stdout  # now .venv's own is taken, unnamed


def python_archive(folder):
    """The list of one Python that uv could bring, in an archive beside it, which leads to this test's own."""
    version, name = "{}.{}.{}".format(*sys.version_info), "python{}.{}".format(*sys.version_info)
    real = Path(sys.executable).resolve()
    (folder / f"python/lib/{name}").mkdir(parents=True)
    (folder / "python/bin").mkdir()
    (folder / f"python/bin/{name}").write_text(f'#!/bin/sh\nexec "{real}" "$@"\n')
    (folder / f"python/bin/{name}").chmod(0o755)
    data = sysconfig._get_sysconfigdata_name() + ".py"
    shutil.copy(Path(sysconfig.get_path("stdlib")) / data, folder / f"python/lib/{name}/{data}")
    archive = shutil.make_archive(str(folder / "python-archive"), "gztar", folder, "python")
    major, minor, patch = sys.version_info[:3]
    listed = folder / "downloads.json"
    key = f"cpython-{version}-linux-{platform.machine()}-gnu"
    listed.write_text(json.dumps({key: {
        "name": "cpython", "arch": {"family": platform.machine(), "variant": None}, "os": "linux", "libc": "gnu",
        "major": major, "minor": minor, "patch": patch, "prerelease": "", "variant": None, "build": "1",
        "url": Path(archive).as_uri(),
        "sha256": hashlib.sha256(Path(archive).read_bytes()).hexdigest()}}))  # fmt: skip
    return listed


def test_interrupted_while_another_make_waits(checkout, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = ["make", "install", f"PYTHON={sys.executable}"]
    first = subprocess.Popen(
        command,
        cwd=checkout.root,
        start_new_session=True,
        env=checkout.env | {"STOP_AT": str(pipe)},
        stdout=subprocess.DEVNULL,
    )
    try:
        pipe.open().close()  # opens when the backend is there, with torch installed and the course's package not
        assert checkout.installed() == {"nvidia-ml-py": "1", "nvidia-blas": "1", "torch": "2"}
        half = checkout.venv / "half-made"
        half.touch()
        second = subprocess.Popen(command, cwd=checkout.root, env=checkout.env, stdout=subprocess.PIPE, text=True)
        assert "Another `make` is installing" in second.stdout.readline()
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    assert "Making .venv" in second.communicate()[0] and second.returncode == 0
    assert checkout.installed()["course-utils"] == "0" and not half.exists()


# One plain sentence


def test_old_python(checkout, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "dirname"):
        (programs / name).symlink_to(shutil.which(name))
    old = programs / "python3"
    old.write_text("#!/bin/sh\necho 3.9\n")
    old.chmod(0o755)
    assert "needs Python 3.11 or newer, and here python3 is 3.9: add PYTHON=auto" in checkout.refuses(
        PATH=str(programs)
    )
    old.unlink()
    assert "needs Python 3.11 or newer, and here there is none: add PYTHON=auto" in checkout.refuses(PATH=str(programs))
    (programs / "python3.12").symlink_to(sys.executable)
    assert "needs about 1000000000 GB" in checkout.refuses(PATH=str(programs), COURSE_NEEDED_GB="1e9")


def test_full_disk(checkout):
    sentence = checkout.refuses(f"PYTHON={sys.executable}", COURSE_NEEDED_GB="123456")
    assert re.search(r"needs about 123456 GB, and .*\.venv has [\d.]+ GB free: make room", sentence)


def test_no_network(checkout):
    sentence = checkout.refuses(f"PYTHON={sys.executable}", PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert re.match("The package index could not be reached.*check the network.*run the same command again", sentence)


def test_version_that_no_index_has(installed):
    installed.lock("nvidia-ml-py==1", "torch==3")
    assert "No index offers torch==3 for Python" in installed.refuses(f"PYTHON={sys.executable}")
    assert installed.installed()["torch"] == "2"


def test_python_without_venv(checkout, tmp_path):
    """As on Debian, where it is the package python3-venv."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['ensurepip'] = None")
    sentence = checkout.refuses(f"PYTHON={sys.executable}", PYTHONPATH=str(tmp_path))
    assert "without venv and ensurepip" in sentence and f"python3.{sys.version_info.minor}-venv" in sentence


def test_environment_of_someone_else(checkout):
    theirs = checkout.venv / "theirs"
    theirs.mkdir(parents=True)
    assert "was not made by `make`" in checkout.refuses(f"PYTHON={sys.executable}")
    assert theirs.exists()


def test_a_link_to_the_environment_of_another_checkout(checkout, tmp_path):
    theirs = tmp_path / "theirs"
    (theirs / ".venv").mkdir(parents=True)
    (theirs / ".venv/course-stamp.json").write_text(json.dumps({"root": str(theirs)}))
    (theirs / ".venv/kept").touch()
    checkout.venv.symlink_to(theirs / ".venv")
    assert "is a link to the environment of another checkout" in checkout.refuses(f"PYTHON={sys.executable}")
    assert (theirs / ".venv/kept").exists()


@pytest.mark.skipif(bool(another_user.missing()), reason=another_user.missing())
def test_an_installation_of_somebody_else(installed, tmp_path):
    """A student may run it, not change it, and is told what to ask its owner for."""
    home, aside = tmp_path / "home", tmp_path / "aside"
    home.mkdir()
    shutil.move(installed.venv, aside)

    def student():
        command = another_user.as_another_user(
            home, "make", "install", f"PYTHON={Path(sys.executable).resolve()}", checkout=installed.root
        )
        done = subprocess.run(command, env=installed.env, capture_output=True, text=True)
        assert "Traceback" not in done.stderr
        return done

    assert (
        "Nothing is installed in" in student().stderr
        and "clone the course into a folder of your own" in student().stderr
    )
    shutil.move(aside, installed.venv)
    assert student().stdout == f"Using what its owner has installed in {installed.venv}.\n"
    installed.lock("nvidia-ml-py==2", 'nvidia-blas==1 ; sys_platform == "linux"', "torch==2")
    done = student()
    assert "older than this version of the course: ask its owner" in done.stdout and done.returncode == 0
    (installed.venv / "course-stamp.json").write_text("")  # while an installation runs
    assert "has not been finished: ask its owner" in student().stderr
    (installed.venv / "bin").chmod(0o700)
    assert "`chmod -R a+rX" in student().stderr
    (installed.venv / "bin").chmod(0o755)
    python, closed = installed.venv / "bin" / "python", installed.root / "closed"  # as pyenv, conda and uv have one
    usual = os.readlink(python)
    closed.mkdir(mode=0o700)
    shutil.copy(python, closed / "python3")
    python.unlink()
    python.symlink_to(closed / "python3")
    try:
        assert f"{closed} is closed to you: ask its owner to run `make install PYTHON=" in student().stderr
    finally:
        shutil.rmtree(closed)
        python.unlink()
        python.symlink_to(usual)


def test_help_names_every_command(checkout):
    said = checkout.make().stdout
    phony = re.search(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert all(f"make {target} " in said for target in phony)
