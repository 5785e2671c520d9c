"""What `python -m tools.solved` must refuse, on chapters of a few cells; `make test` runs it on the real ones."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course_utils import hardware
from tests.helpers.played_gpus import PlayedGpus
from tools import notebooks, solved

# A check with one fault or none.
STAND_IN = """import os, subprocess, sys, threading, time
class CheckFailed(Exception): pass
def check(number, answer, fault):
    try:
        state = f"✓ Exercise {number}" if answer() == 1 else f"✗ Exercise {number}"
    except NotImplementedError:
        state = f"✓ Exercise {number}" if fault == "generous" else f"○ Exercise {number}: not attempted yet"
    if fault != "mute":
        print(state)
    strict = os.environ.get("COURSE_STRICT") == "1" or fault == "never lenient"
    if "✓" not in state and strict and fault != "never strict":
        raise (KeyError if fault == "other error" else CheckFailed)(number)
"""
# Code cells 1 to 7: an exercise each.
FAULTS = ["none", "wrong answer", "mute", "generous", "never lenient", "never strict", "other error"]
# Code cells 8 to 17: a source, or (source, is it tagged, the exception it was committed with).
CELLS = [
    ("1 / 0", True, "ZeroDivisionError"),
    ("x = 1", True, "ValueError"),
    ("x = 1", True, None),
    ("1 / 0", True, "ValueError"),
    "1 / 0",
    "# NBVAL_CHECK_OUTPUT\nprint(1)",
    "thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()",
    "try:\n    found = answer_0()\nexcept NotImplementedError:\n    pass",
    "later = found",
    "also_found = answer_0()",
]
# From cell 18 on three for each exercise, unattempted; from 39 on what reads an answer.
REFUSED = [
    "Cell 2: Cell execution caused an exception.*CheckFailed",
    "Cell 3: its output holds no '✓ Exercise 3.3'",
    "Cell 9: it is tagged raises-exception and raised nothing",
    "Cell 10: it is tagged raises-exception and raised nothing",
    "Cell 11: it raised another exception, .*ZeroDivisionError.*ValueError",
    "Cell 12: Cell execution caused an exception.*ZeroDivisionError",
    "Cell 13: Cell outputs differ",
    "Cell 14: it failed on stderr.*Exception in thread",
    "Cell 25: its output holds no 'Exercise 3.3: not attempted yet'",
    "Cell 28: its output holds no 'Exercise 3.4: not attempted yet'",
    "Cell 29: it is tagged raises-exception and raised nothing",
    "Cell 31: Cell execution caused an exception.*CheckFailed",
    "Cell 35: it is tagged raises-exception and raised nothing",
    "Cell 38: it raised another exception, .*KeyError.*CheckFailed",
    "Cell 39: Cell execution caused an exception.*NameError.*found",
    "Cell 40: Cell execution caused an exception.*NotImplementedError",
]
LEAVES = [
    "open('left.txt', 'w').close()",
    "daemon = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)",
]
CLAIMS = [
    "from course_utils.measure.claims import claim\nclaim('they are equal', False, exact=True)",
    "claim('it is faster', False)",
]
# A launcher's line, as another machine printed it.
ELSEWHERE = (
    "# NBVAL_CHECK_OUTPUT\nprint('2 workers on the CPU with gloo, one core each')\nprint(1)", False, None,
    "4 workers that can use one GPU each, with NCCL for GPU tensors\n1\n",
)  # fmt: skip
USES = ["try:\n    found = answer_0()\nexcept NotImplementedError:\n    found = 0", "later = found"]


def write_chapter(folder, number, faults=("none",), cells=(), solutions=None):
    """A chapter with an exercise for each of `faults`, and further cells."""
    nb = new_notebook(cells=[new_code_cell(STAND_IN)], metadata=notebooks.METADATA)
    answers = []
    for k, fault in enumerate(faults):
        head = f"# Exercise 3.{k + 1}\ndef answer_{k}():\n    "
        nb.cells.append(
            new_code_cell(f'{head}raise NotImplementedError\n\n\ncheck("3.{k + 1}", answer_{k}, "{fault}")')
        )
        answers.append(f"{head}return {2 if fault == 'wrong answer' else 1}\n")
    for source, tagged, ename, *said in (cell if isinstance(cell, tuple) else (cell, False, None) for cell in cells):
        tags = {"tags": [notebooks.FAILS_ON_PURPOSE]} if tagged else {}
        outputs = [new_output("error", ename=ename, evalue="", traceback=[])] if ename else []
        outputs += [new_output("stream", name="stdout", text=text) for text in said]
        nb.cells.append(new_code_cell(source, metadata=tags, execution_count=1, outputs=outputs))
    path = folder / "notebooks" / f"{number:02d}_sample.ipynb"
    notebooks.solutions_path(path).parent.mkdir(parents=True, exist_ok=True)
    notebooks.write(notebooks.normalise(nb), path)
    notebooks.solutions_path(path).write_text("".join(f"# %%\n{answer}" for answer in solutions or answers))
    return path


def run_solved(folder):
    """`python -m tools.solved` in a checkout of its own: ([(chapter, why it refused a cell)], all that it said)."""
    shutil.copytree(notebooks.ROOT / "tools", folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-m", "tools.solved", "--timeout", "10"],
        cwd=folder,
        text=True,
        timeout=280,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(folder), "COURSE_QUICK": "1"},
    )
    said = notebooks.ANSI_COLOUR.sub("", done.stdout + done.stderr)
    assert done.returncode == 1, said
    heading = r"^_+ build/solved/(\d\d)_sample.ipynb::Cell \d+ _+$"
    parts = re.split(heading, said.partition("short test summary")[0], flags=re.MULTILINE)[1:]
    return list(zip(map(int, parts[::2]), parts[1::2])), said


def test_each_fault_is_refused_and_nothing_else(tmp_path):
    """In one run: starting it costs more than a chapter."""
    write_chapter(tmp_path, 0, cells=[*LEAVES, *USES, ELSEWHERE])
    write_chapter(tmp_path, 1, FAULTS, CELLS)
    write_chapter(tmp_path, 2, cells=["import os; os._exit(3)", "x = 1"])
    write_chapter(tmp_path, 3, cells=["time.sleep(60)", "x = 1"])
    write_chapter(tmp_path, 4, cells=CLAIMS)
    expected = [
        *((1, reason) for reason in REFUSED),
        (2, "the kernel died"),
        (3, "Cell 2: Timeout of 10 seconds exceeded"),
        (4, "Cell 2: it claims exactly what does not hold here: '→ not on this machine: they are equal"),
    ]
    found, said = run_solved(tmp_path)
    assert [chapter for chapter, _ in found] == [chapter for chapter, _ in expected], said
    for (_, why), (_, reason) in zip(found, expected):
        assert re.search(f"(?s){reason}", why), why
    assert "the chapters left left.txt beside the notebooks" in said
    assert re.search("processes that had not ended by themselves: .*time.sleep", said), said


def test_a_second_run_in_the_same_checkout_waits(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(solved, "FOLDER", tmp_path / "build" / "solved")
    order = []

    def second():
        with solved.alone_here():
            order.append("second")

    thread = threading.Thread(target=second)
    with solved.alone_here():
        thread.start()
        while "waits for another run" not in capsys.readouterr().err:
            assert thread.is_alive()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


@pytest.mark.parametrize(
    "solutions, reason",
    [
        (["x = 1\n"], r"03_sample.ipynb: exercises without a solution: \['3.1'\]"),
        (["# Exercise 3.1\nx = 1\n", "# Exercise 3.2\ny = 1\n"], r"solutions without an exercise: \['3.2'\]"),
    ],
)
def test_solutions_that_do_not_fit_are_refused(tmp_path, monkeypatch, solutions, reason):
    monkeypatch.setattr(solved, "FOLDER", tmp_path / "solved")
    with pytest.raises(ValueError, match=reason):
        solved.write_solved([write_chapter(tmp_path, 3, solutions=solutions)])


def test_the_lines_about_where_workers_run_are_not_compared():
    notes = ["2 nodes on this machine, a torchrun agent each; 4 workers on the CPU with gloo"]
    for num_gpus in (0, 1, 2, 4):
        with PlayedGpus(num_gpus) if num_gpus else contextlib.nullcontext():
            notes += [hardware.choose_backend(n, backend).note for n in (1, 2, 4) for backend in ("auto", "gloo", None)]
    kept = "two workers: 3.1 ms\n4 workers, which share a sum: 10\n"
    assert re.sub(solved.NOTE, "", "\n".join(notes) + "\n" + kept) == kept
