"""What `python -m tools.solved` must refuse, on chapters of a few cells; `make test` runs it on the real ones."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tools import notebooks

STAND_IN = '''import os
class CheckFailed(Exception): pass
def check(number, answer):
    try:
        state = "✓ Exercise {}" if answer() == 1 else "✗ Exercise {}"
    except NotImplementedError:
        state = "○ Exercise {}: not attempted yet"
    print(state.format(number))
    if "✓" not in state and os.environ.get("COURSE_STRICT") == "1":
        raise CheckFailed(number)
'''
LENIENT = STAND_IN.replace("raise CheckFailed(number)", "pass")
GENEROUS = STAND_IN.replace("○ Exercise {}: not attempted yet", "✓ Exercise {}")
NEVER_LENIENT = STAND_IN.replace('os.environ.get("COURSE_STRICT") == "1"', "True")
OTHERWISE = STAND_IN.replace("raise CheckFailed(number)", "raise NotImplementedError")
MUTE = STAND_IN.replace("print(state.format(number))", 'if "✓" not in state: print(state.format(number))')
ONE = "# Exercise 3.1\ndef one():\n    return 1\n"
USED_AND_NEEDED = "try:\n    found = one()\nexcept NotImplementedError:\n    {}\n", "later = found"
DAEMON = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)"


def run_solved(folder, *extra, setup=STAND_IN, solutions=ONE, timeout_s=60):
    """`python -m tools.solved` in a checkout of its own, on a chapter with one exercise and more cells.

    Each of `extra` is a cell's (source, tag, name of the exception it was committed with), or its source.
    """
    shutil.copytree(notebooks.ROOT / "tools", folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    cells = [setup, "# Exercise 3.1\ndef one():\n    raise NotImplementedError", 'check("3.1", one)']
    nb = new_notebook(cells=[new_code_cell(source) for source in cells], metadata=notebooks.METADATA)
    for source, tagged, ename in (cell if isinstance(cell, tuple) else (cell, False, None) for cell in extra):
        cell = new_code_cell(source, metadata={"tags": [notebooks.FAILS_ON_PURPOSE]} if tagged else {}, execution_count=1)
        if ename:
            cell.outputs = [new_output("error", ename=ename, evalue="", traceback=[])]
        nb.cells.append(cell)
    path = folder / "notebooks" / "03_sample.ipynb"
    notebooks.solutions_path(path).parent.mkdir(parents=True)
    notebooks.write(notebooks.normalise(nb), path)
    notebooks.solutions_path(path).write_text(f"# %%\n{solutions}")
    return subprocess.run([sys.executable, "-m", "tools.solved", "--timeout", str(timeout_s), "03"], cwd=folder, text=True,
                          capture_output=True, timeout=200, env=os.environ | {"PYTHONPATH": str(folder)})


def test_a_sound_chapter_passes(tmp_path):
    needed, later = USED_AND_NEEDED
    done = run_solved(tmp_path, ("1 / 0", True, "ZeroDivisionError"), "x = 1", needed.format("found = 0"), later)
    # The chapter's 7 cells, the stub, its checks and the cell that reads the answer.
    assert done.returncode == 0 and "11 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("chapter, reason", [
    (dict(solutions=ONE.replace("return 1", "return 2")), "Cell 2: Cell execution caused an exception.*CheckFailed"),
    (dict(solutions="x = 1\n"), r"03_sample.ipynb: exercises without a solution: \['3.1'\]"),
    (dict(solutions=ONE + "# %%\n" + ONE.replace("3.1", "3.2")), r"without an exercise: \['3.2'\]"),
    (dict(setup=MUTE), "Cell 2: its output holds no '✓ Exercise 3.1'"),
    (dict(setup=GENEROUS), "Cell 4: its output holds no 'Exercise 3.1: not attempted yet'"),
    (dict(setup=NEVER_LENIENT), "Cell 4: Cell execution caused an exception"),
    (dict(setup=LENIENT), "Cell 5: it is tagged raises-exception and raised nothing"),
    (dict(setup=OTHERWISE), "Cell 5: it raised another exception.*NotImplementedError"),
    (dict(extra=[("x = 1", True, "ValueError")]), "Cell 3: it is tagged raises-exception and raised nothing"),
    (dict(extra=[("x = 1", True, None)]), "Cell 3: it is tagged raises-exception and raised nothing"),
    (dict(extra=[("1 / 0", True, "ValueError")]), "Cell 3: it raised another exception, .*ZeroDivisionError.*ValueError"),
    (dict(extra=["1 / 0"]), "Cell 3: Cell execution caused an exception.*ZeroDivisionError"),
    (dict(extra=["# NBVAL_CHECK_OUTPUT\nprint(1)"]), "Cell 3: Cell outputs differ"),
    (dict(extra=["import os; os._exit(3)", "x = 1"]), "the kernel died.*1 failed, 3 passed, 4 xfailed"),
    (dict(extra=["import time; time.sleep(60)"], timeout_s=5), "Cell 3: Timeout of 5 seconds exceeded"),
    (dict(extra=["import threading as t; t.Thread(target=lambda: 1 / 0).start()"]), "Cell 3: it failed on stderr.*Exception in thread"),
    (dict(extra=["open('left.txt', 'w').close()"]), "left left.txt beside the notebooks"),
    (dict(extra=[DAEMON]), "processes that had not ended by themselves: .*time.sleep"),
    (dict(extra=["found = one()"]), "Cell 7: Cell execution caused an exception.*NotImplementedError"),
    (dict(extra=[USED_AND_NEEDED[0].format("pass"), USED_AND_NEEDED[1]]), "Cell 8: Cell execution caused.*NameError.*'found'"),
])
def test_a_broken_chapter_is_refused(tmp_path, chapter, reason):
    done = run_solved(tmp_path, *chapter.pop("extra", ()), **chapter)
    said = notebooks.ANSI_COLOUR.sub("", done.stdout + done.stderr)
    assert done.returncode == 1, said
    assert re.search(f"(?s){reason}", said), said
