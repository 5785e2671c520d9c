"""A student's copy: none of their work is lost when the course changes, and files they have not begun are updated."""

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tools import notebooks
from tools.lab import working_copy


def write(path, source, output=None):
    outputs = [nbformat.v4.new_output("stream", text=output)] if output else []
    cell = nbformat.v4.new_code_cell(source, id="a", outputs=outputs, execution_count=3 if output else None)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)


def source(path):
    return nbformat.read(path, 4).cells[0].source


@pytest.fixture
def course(tmp_path):
    folder = tmp_path / "notebooks"
    write(folder / "00_start.ipynb", "x = 1", "the answer")
    write(folder / "01_next.ipynb", "y = 1", "the answer")
    (folder / "solutions").mkdir()
    (folder / "solutions/00_start.py").write_text("x = 2\n")
    (folder / "solutions/__pycache__").mkdir()
    (folder / "solutions/__pycache__/a.pyc").touch()
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / ".ipynb_checkpoints/00_start-checkpoint.ipynb").touch()
    return folder


@pytest.fixture
def copy(tmp_path, course):
    folder = tmp_path / "my_course"
    assert working_copy.bring_up_to_date(folder, course) == []
    return folder


def names(folder):
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name != working_copy.HANDED_OUT
    )


def test_it_is_handed_out_without_outputs(course, copy):
    assert names(copy) == ["00_start.ipynb", "01_next.ipynb", "solutions/00_start.py"]
    cell = nbformat.read(copy / "00_start.ipynb", 4).cells[0]
    assert (cell.source, cell.outputs, cell.execution_count) == ("x = 1", [], None)
    # What JupyterLab would put there itself: else a notebook would have unsaved changes as soon as it is opened.
    said = nbformat.read(copy / "00_start.ipynb", 4).metadata.language_info
    assert (said.name, said.version) == ("python", sys.version.split()[0])
    assert copy.stat().st_mode & 0o077 == 0
    assert "the answer" in (course / "00_start.ipynb").read_text()


def test_what_was_begun_stays_and_the_newer_version_lies_beside(course, copy):
    write(copy / "00_start.ipynb", "x = 'mine'", "my output")
    mine = (copy / "00_start.ipynb").read_bytes()
    write(course / "00_start.ipynb", "x = 2")
    assert working_copy.bring_up_to_date(copy, course) == [("00_start.ipynb", "00_v2_start.ipynb")]
    assert working_copy.bring_up_to_date(copy, course) == []
    assert (copy / "00_start.ipynb").read_bytes() == mine
    assert source(copy / "00_v2_start.ipynb") == "x = 2"
    # The second version has not been begun: the third takes its place. Then it has been, and the fourth lies beside
    # both.
    write(course / "00_start.ipynb", "x = 3")
    assert working_copy.bring_up_to_date(copy, course) == [("00_start.ipynb", "00_v2_start.ipynb")]
    write(copy / "00_v2_start.ipynb", "x = 'mine, too'")
    write(course / "00_start.ipynb", "x = 4")
    assert working_copy.bring_up_to_date(copy, course) == [("00_start.ipynb", "00_v3_start.ipynb")]
    assert [source(copy / f"00{v}_start.ipynb") for v in ("", "_v2", "_v3")] == [
        "x = 'mine'",
        "x = 'mine, too'",
        "x = 4",
    ]


def test_what_was_not_begun_is_brought_up_to_date(course, copy):
    write(course / "01_next.ipynb", "y = 2")
    (course / "solutions/00_start.py").write_text("x = 3\n")
    write(course / "02_new.ipynb", "z = 1")
    assert working_copy.bring_up_to_date(copy, course) == []
    assert names(copy) == ["00_start.ipynb", "01_next.ipynb", "02_new.ipynb", "solutions/00_start.py"]
    assert source(copy / "01_next.ipynb") == "y = 2" and (copy / "solutions/00_start.py").read_text() == "x = 3\n"


def test_a_notebook_that_was_only_opened_or_only_run(course, copy):
    """JupyterLab writes its own metadata when a notebook is opened; that loses nothing, outputs would be lost."""
    opened = nbformat.read(copy / "00_start.ipynb", 4)
    opened.metadata["language_info"] = {"name": "python", "version": "3.12.1"}
    nbformat.write(opened, copy / "00_start.ipynb")
    write(copy / "01_next.ipynb", "y = 1", "an output of mine")
    for name in ("00_start", "01_next"):
        write(course / f"{name}.ipynb", "new")
    assert working_copy.bring_up_to_date(copy, course) == [("01_next.ipynb", "01_v2_next.ipynb")]
    assert source(copy / "00_start.ipynb") == "new" and source(copy / "01_next.ipynb") == "y = 1"


def test_predictions_are_each_students_own(course, copy):
    (course / "predictions.json").write_text("of whoever works in the course itself")
    (course / "predictions_damaged.json").write_text("theirs, too")
    (copy / "predictions.json").write_text("the student's")
    write(course / "00_start.ipynb", "x = 2")
    assert working_copy.bring_up_to_date(copy, course) == []
    assert source(copy / "00_start.ipynb") == "x = 2"
    assert (copy / "predictions.json").read_text() == "the student's"
    assert names(copy) == ["00_start.ipynb", "01_next.ipynb", "predictions.json", "solutions/00_start.py"]


def test_new_outputs_alone_are_no_newer_version(course, copy):
    write(copy / "00_start.ipynb", "x = 'mine'")
    write(course / "00_start.ipynb", "x = 1", "recorded on another machine")
    assert working_copy.bring_up_to_date(copy, course) == []


def test_what_a_student_deletes(course, copy):
    (copy / "00_start.ipynb").unlink()
    assert working_copy.bring_up_to_date(copy, course) == [] and source(copy / "00_start.ipynb") == "x = 1"
    # The older one is deleted, the newer one kept.
    write(copy / "00_start.ipynb", "x = 'mine'")
    write(course / "00_start.ipynb", "x = 2")
    working_copy.bring_up_to_date(copy, course)
    (copy / "00_start.ipynb").unlink()
    assert working_copy.bring_up_to_date(copy, course) == []
    assert names(copy) == ["00_v2_start.ipynb", "01_next.ipynb", "solutions/00_start.py"]


def test_files_of_the_students_own_names_and_a_lost_list(course, copy):
    write(copy / "02_new.ipynb", "my own")
    write(course / "02_new.ipynb", "z = 1")
    assert working_copy.bring_up_to_date(copy, course) == [("02_new.ipynb", "02_v2_new.ipynb")]
    (copy / working_copy.HANDED_OUT).write_text("{ half of i")
    write(copy / "00_start.ipynb", "x = 'mine'")
    assert working_copy.bring_up_to_date(copy, course) == [
        ("00_start.ipynb", "00_v2_start.ipynb"),
        ("02_new.ipynb", "02_v2_new.ipynb"),
    ]
    assert not (copy / "02_v3_new.ipynb").exists()
    assert source(copy / "00_start.ipynb") == "x = 'mine'" and source(copy / "02_new.ipynb") == "my own"
    assert working_copy.bring_up_to_date(copy, course) == []


def test_a_write_that_fails_loses_nothing(course, copy, monkeypatch):
    write(copy / "00_start.ipynb", "x = 'mine'")
    for name in ("00_start", "01_next"):
        write(course / f"{name}.ipynb", "new")

    def full(text, path, whole=working_copy.write_whole):
        if path.name == "01_next.ipynb":
            raise OSError(28, "No space left on device")
        whole(text, path)

    monkeypatch.setattr(working_copy, "write_whole", full)
    with pytest.raises(OSError):
        working_copy.bring_up_to_date(copy, course)
    monkeypatch.undo()
    assert source(copy / "00_start.ipynb") == "x = 'mine'" and source(copy / "01_next.ipynb") == "y = 1"
    assert working_copy.bring_up_to_date(copy, course) == []
    assert source(copy / "01_next.ipynb") == "new"
    assert names(copy) == ["00_start.ipynb", "00_v2_start.ipynb", "01_next.ipynb", "solutions/00_start.py"]


def test_a_pull_that_changes_a_begun_chapter_succeeds(course, tmp_path):
    """With git itself, and the checkout's own .gitignore."""
    upstream, clone = tmp_path, tmp_path / "clone"
    (upstream / ".gitignore").write_text((Path(working_copy.ROOT) / ".gitignore").read_text() + "/clone/\n")

    def git(*arguments, folder=upstream):
        done = subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=folder, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    git("init", "-q", "-b", "main")
    git("add", ".gitignore", "notebooks")
    git("commit", "-qm", "first")
    git("clone", "-q", ".", "clone")
    copy = clone / "my_course"
    working_copy.bring_up_to_date(copy, clone / "notebooks")
    write(copy / "00_start.ipynb", "x = 'mine'", "mine")
    for folder in (copy, clone / "notebooks"):
        (folder / "predictions.json").write_text("{}")
    assert git("status", "--short", folder=clone) == ""
    write(course / "00_start.ipynb", "x = 2", "new")
    git("commit", "-qam", "second")
    git("pull", "-q", folder=clone)
    assert working_copy.bring_up_to_date(copy, clone / "notebooks") == [("00_start.ipynb", "00_v2_start.ipynb")]
    assert source(copy / "00_start.ipynb") == "x = 'mine'"
    assert git("status", "--short", folder=clone) == ""


def test_the_course_itself(tmp_path):
    copy = tmp_path / "my_course"
    working_copy.bring_up_to_date(copy)
    for path in notebooks.notebook_paths():
        handed_out = nbformat.read(copy / path.name, 4)
        assert [cell.source for cell in handed_out.cells] == [cell.source for cell in notebooks.read(path).cells]
        assert not any(cell.get("outputs") for cell in handed_out.cells)
    assert (copy / "glossary.md").exists() and (copy / "programs/ddp.py").exists()
    assert json.loads((copy / working_copy.HANDED_OUT).read_text()).keys() >= {
        path.name for path in notebooks.notebook_paths()
    }
