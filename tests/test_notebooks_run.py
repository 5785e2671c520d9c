"""Every notebook with its solutions in it, run top to bottom with COURSE_STRICT=1.

That the notebooks also run as committed, unsolved, is nbval's part (`make test`).
"""

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tools import notebooks


def solved(path):
    """The notebook with its solutions; at its end every stub once more, whose check must raise.

    Without that end a check that strict mode does not reach would count as passed.
    """
    nb = notebooks.read(path)
    stubs = {n: nb.cells[i].source for n, i in notebooks.exercises(nb).items()}
    checks = {n: nb.cells[i].source for n, i in notebooks.check_cells(nb).items()}
    notebooks.put_in(nb, notebooks.read_solutions(path))
    for number, stub in stubs.items():
        nb.cells.append(new_code_cell(stub))
        nb.cells.append(new_code_cell(checks[number], metadata={"tags": [notebooks.FAILS_ON_PURPOSE]}))
    return nb


@pytest.mark.parametrize("path", notebooks.notebook_paths(), ids=lambda path: path.stem)
def test_solved_notebook(path):
    run_solved(path)


def run_solved(path):
    committed = notebooks.read(path)
    nb = solved(path)
    files_before = set(path.parent.iterdir())
    notebooks.execute(nb, path.parent, strict=True)

    raised = notebooks.raised_on_purpose(nb)
    silent = [i for i, names in raised.items() if not names]
    length = len(committed.cells)
    assert not [i for i in silent if i < length], \
        f"cells {silent} are tagged {notebooks.FAILS_ON_PURPOSE} and raised nothing"
    unchecked = [nb.cells[i].source for i in silent if i >= length]
    assert not unchecked, f"these checks let an unattempted exercise pass strictly: {unchecked}"
    as_committed = notebooks.raised_on_purpose(committed)
    assert {i: names for i, names in raised.items() if i < length} == as_committed, \
        "a tagged cell raised another exception than the committed notebook shows"

    for number, i in notebooks.check_cells(committed).items():
        said = " ".join(text for output in nb.cells[i].outputs for text in notebooks.texts(output))
        assert f"✓ Exercise {number}" in said, f"cell {i}, check({number!r}), shows no pass: {said!r}"
    failed = {i: notebooks.silent_failures(cell) for i, cell in enumerate(nb.cells)}
    assert not any(failed.values()), {i: signs for i, signs in failed.items() if signs}
    left = set(path.parent.iterdir()) - files_before
    assert not left, f"{path.name} leaves {[p.name for p in left]} beside the notebooks: use tempfile"


# What the test above must refuse, on notebooks of a few cells.

STAND_IN = '''import os
def check(number, answer):
    try:
        passed = answer() == 1
    except NotImplementedError:
        passed = False
    print("✓" if passed else "✗", "Exercise", number)
    if not passed and os.environ.get("COURSE_STRICT") == "1":
        raise AssertionError(number)
'''
LENIENT = "def check(number, answer):\n    print('✓ Exercise', number)\n"
MUTE = "def check(number, answer):\n    answer()\n"
ONE = "# Exercise 3.1\ndef one():\n    return 1\n"


def write_chapter(folder, *extra, setup=STAND_IN, solutions=ONE):
    """A chapter with one exercise and more cells, each (source, tags, outputs)."""
    path = folder / "03_sample.ipynb"
    cells = [setup, "# Exercise 3.1\ndef one():\n    raise NotImplementedError", 'check("3.1", one)']
    nb = new_notebook(cells=[new_code_cell(source) for source in cells], metadata=notebooks.METADATA)
    for source, tagged, ename in extra:
        cell = new_code_cell(source, metadata={"tags": [notebooks.FAILS_ON_PURPOSE]} if tagged else {})
        if ename:
            cell.outputs = [new_output("error", ename=ename, evalue="", traceback=[])]
        nb.cells.append(cell)
    notebooks.write(notebooks.normalise(nb), path)
    notebooks.solutions_path(path).parent.mkdir()
    notebooks.solutions_path(path).write_text(f"# %%\n{solutions}")
    return path


def test_a_solved_chapter_passes(tmp_path):
    run_solved(write_chapter(tmp_path, ("1 / 0", True, "ZeroDivisionError"), ("x = 1", False, None)))


@pytest.mark.parametrize("chapter, error, reason", [
    (dict(solutions=ONE.replace("return 1", "return 2")), notebooks.CellFailed, "cell 2.*AssertionError"),
    (dict(solutions="x = 1\n"), ValueError, r"without a solution: \['3.1'\]"),
    (dict(solutions=ONE + "# %%\n" + ONE.replace("3.1", "3.2")), ValueError, r"exercise: \['3.2'\]"),
    (dict(setup=MUTE), AssertionError, "shows no pass"),
    (dict(setup=LENIENT), AssertionError, "unattempted exercise pass"),
    (dict(extra=("x = 1", True, "ValueError")), AssertionError, "raised nothing"),
    (dict(extra=("1 / 0", True, "ValueError")), AssertionError, "another exception"),
    (dict(extra=("1 / 0", False, None)), notebooks.CellFailed, "cell 3.*ZeroDivisionError"),
    (dict(extra=("import os; os._exit(3)", False, None)), notebooks.CellFailed, "cell 3: Kernel died"),
    (dict(extra=("import threading as t; t.Thread(target=lambda: 1 / 0).start()", False, None)),
     AssertionError, "Exception in thread"),
    (dict(extra=("open('left.txt', 'w').close()", False, None)), AssertionError, "left.txt"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_a_broken_chapter_is_refused(tmp_path, chapter, error, reason):
    extra = [chapter.pop("extra")] if "extra" in chapter else []
    path = write_chapter(tmp_path, *extra, **chapter)
    with pytest.raises(error, match=f"(?s){reason}"):
        run_solved(path)


def test_a_cell_that_hangs_is_named(tmp_path):
    nb = new_notebook(cells=[new_code_cell("x = 1"), new_code_cell("import time; time.sleep(60)")])
    with pytest.raises(notebooks.CellFailed, match="cell 1: .*timed out"):
        notebooks.execute(nb, tmp_path, timeout_s=1)
