"""What students are handed: the whole course but its answers, its outputs and its history."""

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import nbformat
import pytest

from tools import answers, notebooks
from tools.student_tree import WRITTEN

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("student") / "course"
    done = student_tree(folder)
    assert done.returncode == 0 and f"files are in {folder}" in done.stdout, done.stderr
    return folder


def student_tree(folder, *options):
    command = [sys.executable, "-m", "tools.student_tree", str(folder), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_what_is_handed_out(tree):
    names = {path.relative_to(tree).as_posix() for path in tree.rglob("*")}
    assert {
        "README.md",
        "AGENTS.md",
        "Makefile",
        "requirements/course.lock",
        "notebooks/glossary.md",
        "tools/lab/__main__.py",
    } <= names
    assert {path.name for path in notebooks.notebook_paths()} == {path.name for path in tree.glob("notebooks/*.ipynb")}
    assert not [name for name in names if name.startswith((".git/", "tests", ".ci", "notebooks/solutions", ".venv"))]
    assert not names & {
        "docs/lecturers.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "tools/gpu",
        "tools/record",
        "tools/mark_in_containers.sh",
    }
    assert not (tree / "tools/for_assistants.md").exists()


def pages(tree):
    """(path, text) of all Markdown that is handed out: its files, and its notebooks' cells of text."""
    for path in tree.rglob("*.md"):
        yield path, path.read_text(encoding="utf-8")
    for path in tree.rglob("*.ipynb"):
        for cell in nbformat.read(path, 4).cells:
            if cell.cell_type == "markdown":
                yield path, cell.source


def test_no_link_leads_to_what_was_left_out(tree):
    found = []
    for path, text in pages(tree):
        for link in re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=[\"']([^\"']+)", re.sub(r"`[^`\n]*`", "", text)):
            target = "".join(link).partition("#")[0]
            if target and not re.match(r"\w+:", target):
                found.append((path.relative_to(tree).as_posix(), target, (path.parent / target).exists()))
    assert len(found) > 100 and ("README.md", "docs/launcher.md", True) in found
    assert not [each for each in found if not each[2] or each[1].startswith("/")]


def test_readme_says_all_that_is_left_and_names_no_command_that_is_not_there(tree):
    ours, theirs = ((folder / "README.md").read_text(encoding="utf-8") for folder in (ROOT, tree))
    lost = [line for line in ours.splitlines() if line not in theirs.splitlines()]
    assert len(lost) == 7  # the badge, two commands, rows about Colab, lecturers and contributing, and a sentence
    assert "ADDRESS" not in theirs and "\nmake lab LAB_ARGS=--no-browser " in theirs and "\nssh -N -L 8888:" in theirs
    assert "`make help` lists the commands.\n\n## Licence" in theirs and "make lab" in theirs
    commands = set(re.findall(r"`make (\w+)", theirs)) | set(re.findall(r"^make (\w+)", theirs, re.MULTILINE))
    assert {"lab", "help"} <= commands <= commands_of(tree)
    clusters = (tree / "docs/clusters.md").read_text(encoding="utf-8")
    assert clusters.endswith("each other need containers.\n") and 'The page "Plan a job" of' in clusters


def commands_of(tree):
    done = subprocess.run(["make", "help"], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0 and "make student" not in done.stdout and "COLAB" not in done.stdout, done.stderr
    return set(re.findall(r"^make (\w+)", done.stdout, re.MULTILINE))


def test_make_offers_what_works_there(tree):
    assert commands_of(tree) == {"help", "lab", "kernel", "doctor", "elsewhere", "install", "clean"}
    for command in ("test", "gpu", "student"):
        done = subprocess.run(["make", command], cwd=tree, capture_output=True, text=True)
        assert done.returncode == 2 and "No rule to make target" in done.stderr
    for name in ("tools.lab", "tools.lab.register_kernel", "tools.install.bootstrap", "tools.install.elsewhere"):
        done = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=tree, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_line_of_the_docs_works(tmp_path):
    """A path that leads out of the checkout, as `../handed_out` does."""
    assert "make student DIR=../handed_out" in (ROOT / "docs/lecturers.md").read_text(encoding="utf-8")
    done = student_tree(os.path.relpath(tmp_path / "handed_out", ROOT))
    assert done.returncode == 0 and f"files are in {tmp_path / 'handed_out'}:" in done.stdout, done.stderr
    assert (tmp_path / "handed_out/README.md").exists()


def test_a_second_run_updates_what_the_first_wrote_and_nothing_else(tmp_path):
    course = tmp_path / "course"
    assert student_tree(course).returncode == 0
    listed = json.loads((course / WRITTEN).read_text())
    assert {course / name for name in listed} == {path for path in course.rglob("*") if path.is_file()} - {
        course / WRITTEN
    }
    first = {path: path.stat().st_mtime_ns for path in course.rglob("*") if path.is_file() and path.name != WRITTEN}
    theirs = {"my_course/01_devices.ipynb": "mine", ".venv/bin/python": "python", "build/a": "b", "notes.md": "mine"}
    for name, text in theirs.items():
        (course / name).parent.mkdir(parents=True, exist_ok=True)
        (course / name).write_text(text)
    (course / "old/part").mkdir(parents=True)
    (course / "old/part/chapter.md").write_text("of an earlier version")
    (course / "README.md").write_text("of an earlier version")
    (course / "LICENSE").unlink()
    outside = tmp_path / "outside.md"
    outside.write_text("mine")
    (course / WRITTEN).write_text(json.dumps([*listed, "old/part/chapter.md", "../outside.md"]))

    done = student_tree(course)
    assert done.returncode == 0 and not done.stderr
    said = (
        f"{course} was updated: 1 new, 1 changed, {len(listed) - 2} unchanged, 1 removed; what else is there was left"
    )
    assert done.stdout.startswith(said) and len(done.stdout.splitlines()) == 1, done.stdout
    assert {name: (course / name).read_text() for name in theirs} == theirs and outside.read_text() == "mine"
    assert not (course / "old").exists() and (course / "LICENSE").exists()
    assert "From One GPU to Many" in (course / "README.md").read_text()
    assert json.loads((course / WRITTEN).read_text()) == listed
    after = {path: path.stat().st_mtime_ns for path in first}
    assert {path.name for path in first if after[path] != first[path]} == {"README.md", "LICENSE"}


def test_assistants_are_asked_to_teach_unless_the_lecturer_leaves_that_out(tree, tmp_path):
    said = (tree / "AGENTS.md").read_text()
    assert "Teach; do not solve." in said and "`check`" in said and "hint" in said and "`predict(…)`" in said
    for name in re.findall(r"`([\w./*]+/[\w./*]+)`", said):  # what it names is there
        assert list(tree.glob(name)), name
        assert "check" not in name  # checks compute some of what is asked for
    done = student_tree(tmp_path / "course", "--without-agents")
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "course").rglob("AGENTS.md"))


def test_every_notebook_is_the_courses_without_outputs(tree):
    num_stubs = 0
    for path in notebooks.notebook_paths():
        theirs, ours = nbformat.read(tree / "notebooks" / path.name, 4), nbformat.read(path, 4)
        assert [cell.source for cell in theirs.cells] == [cell.source for cell in ours.cells]
        assert not [cell for cell in theirs.cells if cell.get("outputs") or cell.get("execution_count")]
        stubs = notebooks.exercises(theirs)  # they are open: tests/test_checks.py
        num_stubs += len(stubs)
    assert num_stubs >= 54


def body(function):
    """What a function does, whatever its name and docstring."""
    statements = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return "\n".join(map(ast.unparse, statements))


def functions(text):
    """(name, what it does) of the functions in a text; nothing for one that is no Python."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name, body(node)


def test_no_answer_is_in_any_file(tree):
    """Neither a function of a solution nor of another right answer, under whatever name."""
    right = {}
    for path in notebooks.notebook_paths():
        nb = notebooks.read(path)
        stubs = notebooks.exercises(nb)
        for exercise, solution in notebooks.read_solutions(path).items():
            stub = nb.cells[stubs[exercise]].source
            given = set(functions(stub))
            others = answers.read(answers.file_of(exercise), solution)
            texts = [solution, *(answer.source for answer in others if answer.label == "right")]
            for text in texts:
                right |= {what: (exercise, name) for name, what in set(functions(text)) - given}
    assert len(right) > 150
    found = []
    for path in tree.rglob("*"):
        if path.suffix == ".ipynb":
            texts = [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
        elif path.suffix == ".py":
            texts = [path.read_text()]
        else:
            continue
        found += [(path.name, name, right[what]) for text in texts for name, what in functions(text) if what in right]
    assert not found


def test_all_may_read_it_whatever_the_umask_is(tmp_path):
    for times in range(2):  # the second brings what is there up to date
        command = [sys.executable, "-m", "tools.student_tree", str(tmp_path / "for all" / "course")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, umask=0o077)
        assert done.returncode == 0, done.stderr
        modes = {path: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
        assert set(modes.values()) == {0o644, 0o755} and all(modes[path] == 0o755 for path in modes if path.is_dir())
        (tmp_path / "for all" / "course" / "README.md").chmod(0o600)


def test_a_folder_with_something_in_it_is_not_written_into(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    done = student_tree(tmp_path)
    assert done.returncode == 1 and "is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "folder, said",
    [("", "name the folder"), ("handed_out", "lies in the course itself"), (".", "lies in the course itself")],
)
def test_folders_that_cannot_be_right(folder, said):
    done = student_tree(folder)
    assert done.returncode == 1 and said in done.stderr and not (ROOT / "handed_out").exists()


def test_for_colab_each_notebook_fetches_the_course_where_it_is_not_there(tmp_path):
    """Cloned from a repository made here; pip is told to install nothing that it would have to download."""
    course = tmp_path / "course"
    done = student_tree(course, "--colab", str(course))
    assert done.returncode == 0, done.stderr
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *command], cwd=course, check=True)
    firsts = {nbformat.read(path, 4).cells[0].source for path in course.glob("notebooks/*.ipynb")}
    assert len(firsts) == 1
    machine = tmp_path / "machine"
    # Its pip is this environment's: to install one takes longer than all else.
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", machine], check=True)
    (machine / "cell.py").write_text(f"{firsts.pop()}\nimport course_utils\nprint(course_utils.__file__, os.getcwd())")
    for _ in range(2):  # a second time, as when the runtime is started again, it fetches nothing
        nothing_fetched = {
            "PIP_NO_DEPS": "1",
            "PIP_NO_INDEX": "1",
            "PIP_NO_BUILD_ISOLATION": "0",
        }  # pip reads it the other way round
        env = os.environ | nothing_fetched | {"PYTHONPATH": sysconfig.get_path("purelib")}
        done = subprocess.run(
            [machine / "bin" / "python", machine / "cell.py"], cwd=machine, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
