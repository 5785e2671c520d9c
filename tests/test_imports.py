"""Imports inside course_utils go down only, and importing it starts and initialises nothing."""

import ast
import re
from pathlib import Path

import pytest

from tests.helpers.import_lines import imported, modules
from tests.helpers.looked_at import QUIET, look_at_import
from tools import notebooks

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "course_utils"

# What each idea of the package imports of the others, and no more. Its row names only ideas from the rows above it.
MAY_IMPORT = {
    "extras": set(),
    "hardware": set(),
    "notebook": set(),
    "data": {"extras"},
    "models": set(),
    "paced": set(),
    "measure": {"hardware", "paced"},
    "parallel": {"hardware"},
    "checkpoint": {"hardware"},
    "recorded": {"hardware"},
    "cells": set(),
    "processes": set(),
    "slurm": set(),
    "planner": set(),
    "whole_files": set(),
    "predictions": {"extras", "notebook", "whole_files"},
    "plots": {"extras", "hardware", "notebook"},
    "launch": {"cells", "extras", "hardware", "notebook", "plots", "processes", "slurm"},
    "kernels": {"cells", "extras", "hardware", "launch", "processes"},
    "chapter": {"hardware", "launch", "notebook"},
    "frameworks": {"hardware", "launch", "recorded"},
    "train": {"checkpoint", "data", "hardware", "launch", "models", "paced", "processes"},
    "doctor": {"data", "hardware", "launch", "processes"},
    "checks": {"cells", "kernels", "launch", "notebook", "parallel"},
    "grade": {"checks", "extras", "hardware", "launch", "processes"},
    "chapters": {
        "cells",
        "checkpoint",
        "checks",
        "frameworks",
        "hardware",
        "kernels",
        "launch",
        "measure",
        "models",
        "parallel",
        "planner",
        "plots",
        "processes",
    },  # fmt: skip
}
OUTSIDE = ("tests", "tools")


def idea(module):
    """The name in MAY_IMPORT for a dotted module, `course_utils.launch.worker` → `launch`."""
    return module.split(".")[1]


def crossings(package):
    """The imports of another idea's module, by package, tests and tools: (idea, what it imports, where)."""
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


def room(module):
    """The room of a module, `c09_…`, or None: `course_utils.chapters.c09_….check` is in one."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 and parts[1] == "chapters" and re.match(r"c\d\d_", parts[2]) else None


def rooms_entered(tree, module="", is_package=False):
    """(room, line) for each import from a chapter's room in a file."""
    return [(found, line) for target, line in imported(tree, module, is_package) if (found := room(target))]


def complaints(package):
    """What in the package at `package` imports upwards or out of the course, or from a chapter's room."""
    for path, module in modules(package):
        if idea(module) not in MAY_IMPORT:
            yield f"{path.relative_to(package.parent)}: give {idea(module)!r} a row in {Path(__file__).name}"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for entered, line in rooms_entered(tree, module, path.stem == "__init__"):
            if entered != room(module) and idea(module) == "chapters":
                yield f"{path.relative_to(package.parent)}:{line} imports from {entered}, another chapter's room"
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


def test_a_chapters_room_is_its_own():
    """Only its notebook, its solutions and its tests import from it."""
    found = []
    for path in [*ROOT.glob("tests/**/*.py"), *ROOT.glob("tools/**/*.py"), *ROOT.glob("notebooks/**/*.py")]:
        place = path.relative_to(ROOT)
        if not re.match(r"ex_\d", path.name):  # answers, in any form that a student may write
            entered = rooms_entered(ast.parse(path.read_text(encoding="utf-8")))
            own = place.parts[2] if place.parts[:2] == ("tests", "chapters") else f"c{path.stem[:2]}"
            found += [f"{place}:{line} imports from {name}" for name, line in entered if not name.startswith(own)]
    for path in notebooks.notebook_paths():
        for cell in (cell for cell in notebooks.read(path).cells if cell.cell_type == "code"):
            entered = set(re.findall(r"^(?:from|import) course_utils\.chapters\.(\w+)", cell.source, re.MULTILINE))
            found += [f"{path.name} imports from {name}" for name in entered if name[1:3] != path.stem[:2]]
    assert not found, "\n".join(found)


def test_each_chapter_has_a_room_and_each_room_a_chapter():
    rooms = sorted(path.name[1:3] for path in (PACKAGE / "chapters").glob("c[0-9]*"))
    assert rooms == sorted(path.stem[:2] for path in notebooks.notebook_paths())


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
        ("chapters/c09_ddp/check.py", "from ...chapter import describe"),
        ("chapters/c09_ddp/check.py", "from tests.helpers import machines"),
        ("chapters/c09_ddp/check.py", "from ..c10_fsdp import figures"),
        ("checks/__init__.py", "from ..chapters.c09_ddp import check"),
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
        "checks/__init__.py": "from ..kernels import run",
        "checks/judge.py": "",
        "chapters/__init__.py": "",
        "chapters/c09_ddp/__init__.py": "",
        "chapters/c09_ddp/check.py": "from course_utils import log\nfrom ...checks import judge\nfrom . import figures",
        "chapters/c09_ddp/figures.py": "",
    }
    for name, code in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    return package


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
