"""The hints of the package: each public function has them, and mypy finds nothing wrong with them."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ["checks", "launch", "measure", "planner"]


def public_functions(node, owner=""):
    """(name, function, whether it is a method) of each public one at `node`, not of those inside functions."""
    for each in ast.iter_child_nodes(node):
        is_definition = isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if is_definition and each.name.startswith("_"):
            continue
        if isinstance(each, ast.ClassDef):
            yield from public_functions(each, f"{owner}{each.name}.")
        elif is_definition:
            yield f"{owner}{each.name}", each, bool(owner)
        else:  # an `if`, a `try`
            yield from public_functions(each, owner)


def unhinted(function, is_method):
    """The names of the parameters that have no hint, and "return" if that has none."""
    given = function.args
    parameters = [*given.posonlyargs, *given.args]
    if is_method and not any(getattr(each, "id", "") == "staticmethod" for each in function.decorator_list):
        del parameters[0]  # self, cls
    parameters += [*filter(None, [given.vararg]), *given.kwonlyargs, *filter(None, [given.kwarg])]
    missing = [each.arg for each in parameters if each.annotation is None]
    return missing + (["return"] if function.returns is None else [])


def test_public_functions_have_hints():
    found = [
        f"{path.relative_to(ROOT)}:{function.lineno} {name}: no hint for {', '.join(missing)}"
        for package in PACKAGES
        for path in sorted((ROOT / "course_utils" / package).rglob("*.py"))
        for name, function, is_method in public_functions(ast.parse(path.read_text(encoding="utf-8")))
        if (missing := unhinted(function, is_method))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_finds_nothing(tmp_path):
    packages = [word for package in PACKAGES for word in ("-p", f"course_utils.{package}")]
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", str(tmp_path), *packages]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"\n{done.stdout}{done.stderr}"
