"""A module is read in a sitting, a function at a glance, and no two modules of the package import one another."""

import ast
import graphlib
from pathlib import Path

from tests.helpers.import_lines import imported, modules

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES_OF_A_MODULE, MOST_LINES_OF_A_FUNCTION = 350, 50
FILES = sorted([*ROOT.glob("course_utils/**/*.py"), *ROOT.glob("tools/**/*.py")])


def test_modules_are_read_in_a_sitting():
    """But for the checks of a chapter, of which one exercise is read at a time."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES if path.name != "check.py"}
    assert not [f"{path}: {n} lines" for path, n in lengths.items() if n > MOST_LINES_OF_A_MODULE]


def test_functions_are_read_at_a_glance():
    found = [
        f"{path}: {node.name} has {length} lines"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        and (length := node.end_lineno - node.lineno + 1) > MOST_LINES_OF_A_FUNCTION
    ]
    assert not found, "\n".join(found)


def circle(package):
    """The dotted names of modules that import one another as they are imported, or None."""
    trees = {
        name: (ast.parse(path.read_text(encoding="utf-8")), path.stem == "__init__") for path, name in modules(package)
    }
    needs = {}
    for name, (tree, is_package) in trees.items():
        tree.body = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        targets = [target for target, _ in imported(tree, name, is_package)]
        found = {target if target in trees else target.rpartition(".")[0] for target in targets}
        needs[name] = (found & trees.keys()) - {name}
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return None


def test_no_two_modules_import_one_another():
    assert circle(ROOT / "course_utils") is None


def test_a_circle_is_found(tmp_path):
    package = tmp_path / "course_utils"
    (package / "launch").mkdir(parents=True)
    for name, code in {"launch/__init__": "", "launch/a": "from . import b", "launch/b": "from .a import f"}.items():
        (package / f"{name}.py").write_text(code)
    assert set(circle(package)) == {"course_utils.launch.a", "course_utils.launch.b"}
