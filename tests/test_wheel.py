"""The wheel alone: `launch` works from it with nothing else installed than what it requires."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helpers.kernel import Notebook

ROOT = Path(__file__).resolve().parent.parent
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
SCRIPT = """
import course_utils
from course_utils import WorkerError, check, data, launch

def average(seed):
    import torch, torch.distributed as dist
    torch.manual_seed(seed + dist.get_rank())
    x = torch.randn(3)
    dist.all_reduce(x)
    return x / dist.get_world_size()

def unlike(x):
    raise ValueError("one of its own")

def not_attempted(*_):
    raise NotImplementedError

run = launch(average, seed=0, world_size=2)
assert run[0].tolist() == run[1].tolist() and run[0].shape == (3,)
try:
    launch(unlike, 1, world_size=2)
except WorkerError as error:
    assert error.type_name == "ValueError" and "script.py, line 13, in unlike" in str(error), error
else:
    raise AssertionError("no error")
assert check("9.2", not_attempted).state == "open"
assert len(data.load_images("digits", train=False)) == 360
assert len(run.metrics) == 0
for use in (
    lambda: __import__("course_utils.plots"),
    lambda: __import__("course_utils.chapters.c08_processes_that_talk.figures"),
    lambda: run.show_history(),
    lambda: data.load_images("mnist"),
    lambda: __import__("course_utils.grade.submissions"),
):
    try:
        use()
    except ModuleNotFoundError as error:
        print(error)
print(course_utils.__file__)
"""


def required(names):
    """The distributions `names`, and all that they require here."""
    found, waiting = set(), list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found:
            found.add(name)
            lines = map(Requirement, importlib.metadata.requires(name) or [])
            waiting += [each.name for each in lines if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def make_environment(folder, wheel, names):
    """A virtual environment with the wheel, and links to distributions that are installed here; its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in names:
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(distribution.locate_file(top))
    zipfile.ZipFile(wheel).extractall(packages)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the files that git tracks."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*.toml", "setup.py", "README.md", "LICENSE*", "course_utils", "data"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, listed):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run([sys.executable, "-c", BUILD, target], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = target.iterdir()
    return built


@pytest.fixture(scope="module")
def core(wheel):
    """The names of the distributions that the wheel requires without an extra."""
    (path,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA")]
    lines = Parser().parsestr(zipfile.ZipFile(wheel).read(path).decode()).get_all("Requires-Dist")
    found = map(Requirement, lines)
    return required(each.name for each in found if each.marker is None or each.marker.evaluate({"extra": ""}))


def test_what_is_in_it(wheel, core):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    listed = subprocess.run(["git", "ls-files", "course_utils"], cwd=ROOT, check=True, capture_output=True, text=True)
    bundled = {f"course_utils/bundled/{name}" for name in ("README.md", "digits.npz", "romeo_and_juliet.txt")}
    assert names == set(listed.stdout.split()) | bundled
    assert wheel.stat().st_size <= 1_500_000
    assert {"torch", "cloudpickle", "psutil"} <= core
    assert not {"ipython", "ipykernel", "ipywidgets", "jupyterlab", "matplotlib", "torchvision"} & core


def test_a_script_that_launches_with_nothing_else_installed(wheel, core, tmp_path):
    python = make_environment(tmp_path / "environment", wheel, core)
    (tmp_path / "script.py").write_text(SCRIPT)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COURSE_"))}
    done = subprocess.run([python, "script.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, figures, rooms, plot, images, marks, where = done.stdout.splitlines()
    for said in (figures, rooms, plot):
        assert said.startswith("figures need matplotlib, which is not installed: pip install 'course-utils[lab]'")
    assert images.startswith("data sets other than the digits need torchvision")
    assert re.match("marks need (IPython|nbformat)", marks)
    assert Path(where).is_relative_to(tmp_path / "environment")


def test_a_kernel_without_widgets_or_matplotlib_shows_the_panel_as_a_table(wheel, core, tmp_path, monkeypatch):
    """As a front end does it that brings only ipykernel."""
    python = make_environment(tmp_path / "environment", wheel, core | required(["ipykernel"]))
    spec = tmp_path / "jupyter" / "kernels" / "alone" / "kernel.json"
    spec.parent.mkdir(parents=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": argv, "display_name": "alone", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    (tmp_path / "notebook").mkdir()
    variables = {"PYTHONPATH": "", "COURSE_PANEL": "1", "PYTEST_CURRENT_TEST": ""}
    notebook = Notebook(tmp_path / "notebook", "import course_utils", kernel_name="alone", **variables)
    try:
        assert Path(notebook.run("course_utils.__file__").value).is_relative_to(tmp_path / "environment")
        notebook.run("del __import__('os').environ['PYTEST_CURRENT_TEST']")
        seen = notebook.type_into(
            "from course_utils import launch, log, predict\n"
            "def work():\n"
            "    import time\n"
            "    for step in range(28):\n"
            "        time.sleep(0.1)\n"
            "        log(step=step, loss=0.5)\n"
            "answer = predict('How long?', unit='s')\n"
            "run = launch(work, world_size=2)\nprint(len(run.metrics), answer)",
            answer=lambda prompt: None,
        )
        assert not seen.error, seen.shown
        assert seen.stdout.endswith("56 None\n") and not seen.stderr
        assert len(seen.htmls) == 1 and "<table" in seen.htmls[0]
        assert any("rank 1: running, step" in text for text in seen.updates)
        assert seen.updates[-1].startswith("work on 2 ranks: finished") and "rank 0: returned" in seen.updates[-1]
    finally:
        notebook.close()
