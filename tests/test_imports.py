"""Imports inside course_utils go down only, and importing it starts and initialises nothing."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "course_utils"

# What each idea of the package imports of the others, and no more. Its row names only ideas from the rows above it.
MAY_IMPORT = {
    "hardware": set(),
    "notebook": set(),
    "data": set(),
    "models": set(),
    "measure": {"hardware"},
    "parallel": set(),
    "checkpoint": set(),
    "recorded": {"hardware"},
    "cells": set(),
    "processes": set(),
    "slurm": set(),
    "planner": set(),
    "plots": {"hardware", "notebook"},
    "launch": {"cells", "hardware", "notebook", "plots", "processes", "slurm"},
    "kernels": {"cells", "hardware", "launch", "processes"},
    "chapter": {"hardware", "launch"},
    "frameworks": {"hardware", "launch", "measure", "parallel", "processes", "recorded"},
    "train_ranks": {"checkpoint", "hardware"},
    "train_options": {"hardware", "train_ranks"},
    "train_state": {"checkpoint", "train_ranks"},
    "train": {"data", "hardware", "launch", "models", "processes", "train_options", "train_ranks", "train_state"},
    "doctor": {"data", "hardware", "launch", "processes"},
    "checks": {"cells", "checkpoint", "frameworks", "kernels", "launch", "measure", "models", "parallel", "planner"},
    "grade": {"checks", "hardware", "launch", "processes"},
}
OUTSIDE = ("tests", "tools")


def idea(module):
    """The name in MAY_IMPORT for a dotted module, `course_utils.launch.worker` → `launch`."""
    return module.split(".")[1]


def imported(tree, module, is_package):
    """(dotted module or name, line) for each import in a file, those inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                above = parts[: len(parts) - node.level + is_package]
                base = ".".join([*above, base] if base else above)
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def modules(package):
    """(path, its module's dotted name) for each file of the package but its own __init__.py."""
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        if parts[1:] != ("__init__",):
            yield path, ".".join(parts).removesuffix(".__init__")


def crossings(package):
    """(idea, what it imports, where) for each import of another idea's module, of the package, of
    tests and of tools.
    """
    # `from course_utils import log` reaches the module that the package takes `log` from.
    comes_from = {}
    for node in ast.parse((package / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
            comes_from |= {alias.asname or alias.name: node.module for alias in node.names}
    ideas = {idea(module) for _, module in modules(package)}
    for path, module in modules(package):
        for target, line in imported(ast.parse(path.read_text(encoding="utf-8")), module, path.stem == "__init__"):
            first, *rest = target.split(".")
            name = rest[0] if rest else ""
            other = first if first in OUTSIDE else name if name in ideas else comes_from.get(name, name).split(".")[0]
            if first in OUTSIDE or (first == package.name and other != idea(module)):
                yield idea(module), other, f"{path.relative_to(package.parent)}:{line}"


def complaints(package):
    """What in the package at `package` imports upwards or out of the course."""
    for path, module in modules(package):
        if idea(module) not in MAY_IMPORT:
            yield f"{path.relative_to(package.parent)}: give {idea(module)!r} a row in {Path(__file__).name}"
    for name, other, where in crossings(package):
        if other in OUTSIDE:
            yield f"{where} imports {other}, which students do not have installed"
        elif other not in MAY_IMPORT.get(name, {other}):
            yield (
                f"{where} imports {other or 'the whole package'}: {name} stands on "
                f"{sorted(MAY_IMPORT[name]) or 'nothing of the course'}"
            )


def test_imports_go_down_only():
    found = list(complaints(PACKAGE))
    assert not found, "\n" + "\n".join(found)


def test_a_row_allows_what_is_imported_and_no_more():
    found = {idea(module): set() for _, module in modules(PACKAGE)}
    for name, other, _ in crossings(PACKAGE):
        found[name].add(other)
    assert MAY_IMPORT == found


def test_a_row_stands_on_rows_above_it():
    names = list(MAY_IMPORT)
    assert not [name for i, name in enumerate(names) if not MAY_IMPORT[name] <= set(names[:i])]


@pytest.mark.parametrize(
    "file, code",
    [
        ("hardware/__init__.py", "from ..measure import memory"),
        ("models.py", "import course_utils.data"),
        ("measure/memory.py", "def f():\n    from ..launch import launch"),
        ("measure/memory.py", "from ..parallel import ring"),
        ("parallel/ring.py", "from .. import launch"),
        ("hardware/nvml.py", "from course_utils.data import digits"),
        ("hardware/nvml.py", "from ..data import files"),
        ("launch/worker.py", "from ..kernels import recorder"),
        ("launch/__init__.py", "from ..checks import check"),
        ("plots.py", "from course_utils import launch"),
        ("data/files.py", "from course_utils import log"),
        ("chapter.py", "import course_utils"),
        ("chapter.py", "from .checks import check"),
        ("checks/chapter09.py", "from ..chapter import describe"),
        ("checks/chapter09.py", "from tests.wrong_answers import ex_9_1"),
        ("chapter.py", "import tools.notebooks"),
        ("misc.py", ""),
    ],
)
def test_an_import_upwards_is_refused(tmp_path, file, code):
    package = sound_package(tmp_path)
    (package / file).write_text(code)
    assert len(list(complaints(package))) == 1


def test_imports_downwards_are_allowed(tmp_path):
    assert not list(complaints(sound_package(tmp_path)))


def sound_package(folder):
    package = folder / "course_utils"
    files = {
        "__init__.py": "from .launch import launch, log\nfrom .checks import check",
        "hardware/__init__.py": "from . import nvml\nfrom .nvml import gpus\nimport torch",
        "hardware/nvml.py": "import tools_of_others\nfrom .host import num_cores",
        "hardware/host.py": "",
        "data/__init__.py": "from .files import folders",
        "data/files.py": "",
        "models.py": "",
        "measure/__init__.py": "",
        "measure/memory.py": "from . import throughput",
        "measure/throughput.py": "",
        "parallel/__init__.py": "",
        "parallel/messages.py": "",
        "parallel/ring.py": "from . import messages\nfrom course_utils.parallel.messages import send",
        "launch/__init__.py": "from .. import hardware\nfrom .worker import log\nfrom . import worker",
        "launch/worker.py": "def f():\n    from ..hardware import rank_device\n    from . import server",
        "launch/server.py": "from course_utils.launch.worker import log",
        "plots.py": "from .hardware import describe",
        "chapter.py": "from . import hardware\nfrom .launch import warm",
        "checks/__init__.py": "from ..kernels import run\nfrom . import chapter09",
        "checks/chapter09.py": "from course_utils import launch\nfrom ..parallel.ring import all_reduce",
    }
    for name, code in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    return package


HEAVY = ["matplotlib.pyplot", "numba", "pandas", "torchvision"]
# The audit hook also sees processes that have ended again, such as a call of nvidia-smi.
IMPORT_AND_LOOK = """
import json, sys, threading
started = []
def note(event, args):
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system",
                 "_thread.start_new_thread", "_thread.start_joinable_thread", "socket.bind"):
        started.append(event)
sys.addaudithook(note)
import {module}
torch = sys.modules.get("torch")
print(json.dumps({{
    "heavy": [name for name in {heavy} if name in sys.modules],
    "cuda": bool(torch and torch.cuda.is_initialized()),
    "started": started,
    "threads": [thread.name for thread in threading.enumerate()],
}}))
"""


def look_at_import(module, folder):
    code = IMPORT_AND_LOOK.format(module=module, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


QUIET = {"heavy": [], "cuda": False, "started": [], "threads": ["MainThread"]}


def test_importing_the_package_does_nothing():
    assert look_at_import("course_utils", ROOT) == QUIET


@pytest.mark.parametrize(
    "code",
    [
        "import matplotlib.pyplot",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', ''])",
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "import os; os.fork() or os._exit(0)",
        "import socket; socket.socket().bind(('127.0.0.1', 0))",
    ],
)
def test_an_import_with_an_effect_is_seen(tmp_path, code):
    (tmp_path / "course_utils").mkdir()
    (tmp_path / "course_utils/__init__.py").write_text(code)
    assert look_at_import("course_utils", tmp_path) != QUIET
