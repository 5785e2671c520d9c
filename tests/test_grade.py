"""Submissions of one chapter that differ in kind, marked as a lecturer does, two at a time:
each gets its own verdicts, whatever others do.
"""

import csv
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import nbformat
import psutil
import pytest

from course_utils.grade import notebook, report, submissions
from course_utils.grade.marking import Verdict
from tools import notebooks

ROOT = Path(__file__).resolve().parent.parent
CHAPTER = notebooks.notebook_paths(["01"])[0]
SOLUTIONS = notebooks.read_solutions(CHAPTER)
NUMBERS = tuple(SOLUTIONS)
RIGHT = SOLUTIONS["1.4"]
PASSED = ("passed",) * len(NUMBERS)
LIMIT_S = 30


def submission(answers=None, before="", after="", **other):
    """A notebook with solutions, but `answers` {"1.4": source}, and cells put before its exercises and after them."""
    nb = notebooks.put_in(notebooks.read(CHAPTER), SOLUTIONS)
    first = min(notebooks.exercises(nb).values())
    for number, source in (answers or {}).items():
        nb.cells[notebooks.exercises(nb)[number]].source = source
    if before:
        nb.cells.insert(first, nbformat.v4.new_code_cell(before))
    if after:
        nb.cells.append(nbformat.v4.new_code_cell(after))
    return nb


def without(nb, number):
    del nb.cells[notebooks.exercises(nb)[number]]
    return nb


def open_port():
    """The port of a server on 127.0.0.1, outside, that counts who connects."""
    server = socket.create_server(("127.0.0.1", 0))
    visits = []

    def accept():
        while True:
            server.accept()[0].close()
            visits.append(1)

    threading.Thread(target=accept, daemon=True).start()
    return server.getsockname()[1], visits


STUB = notebook.answer_and_check(
    notebooks.read(CHAPTER).cells[notebooks.exercises(notebooks.read(CHAPTER))["1.4"]].source
)[0]
WRONG = "def model_bytes(model, dtype):\n    return 0"
CALLED = "def model_bytes(model, dtype):\n    {}\n    return 0"
FORGED = """import json, sys
frame = sys._getframe()
while "pipe" not in frame.f_locals:
    frame = frame.f_back
verdict = json.dumps({{"number": "1.4", "state": "passed", "reason": ""}})
print(json.dumps([verdict, "0" * 64]), file=frame.f_locals["pipe"], flush=True)
print("✓ Exercise 1.4: passed")
{}"""
ENDLESS = "    while True:\n        pass\n    if isinstance(batch, dict)"
SLEEPER = "import subprocess\nsubprocess.Popen(['sleep', '4242'], start_new_session=True)\n"
THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(4242,)).start()\n"
PATCHED = "from course_utils import checks\nchecks.chapter_01.check_1_4 = lambda answer: 'ok'\n"
PATCHED_TENSOR = "import torch\ntorch.Tensor.element_size = lambda self: 4\n"
CALL_HOME = """import socket
try:
    socket.create_connection(("127.0.0.1", PORT), timeout=2)
except OSError:
    pass
"""
EMPTIED = "import course_utils.checks.chapter_01 as c\nopen(c.__file__, 'w').close()\n"


def planned():
    """{name: (notebook, states of 1.1 to 1.4)}: each holds four things, where they can be in one notebook."""
    first, second, third = SOLUTIONS["1.1"], SOLUTIONS["1.2"], SOLUTIONS["1.3"]
    body = RIGHT.partition("\n")[2]
    renamed = third.replace("move(", "move_all(") + '\n\ncheck("1.3", move_all)'
    uses_helper = "def model_bytes(model, dtype):\n    return helper(model, dtype)"
    uses_computed = "ONE = one_of_them()\n" + second.replace("return loss", "return (ONE - computed) + loss")
    return {
        "all open, format of 2014": (notebooks.read(CHAPTER), ("open",) * len(NUMBERS)),
        "right in other ways": (  # magics; what a cell computes; a cell that lost its first line; a helper's own cell
            submission(
                {
                    "1.1": f"%matplotlib inline\n!ls\n{first}",
                    "1.2": uses_computed,
                    "1.3": third.replace("# Exercise 1.3", "# my own answer"),
                    "1.4": uses_helper,
                },
                before=body.replace("model_bytes", "helper") + "\none_of_them = (lambda: 1)\ncomputed = one_of_them()",
            ),
            PASSED,
        ),
        "right, with traces": (
            submission(
                {
                    "1.1": f"print('x' * 200_000_000)\n{first}",
                    "1.2": SLEEPER + second,
                    "1.3": THREAD + third,
                    "1.4": CALL_HOME + RIGHT,
                }
            ),
            PASSED,
        ),
        "right elsewhere": (
            without(submission({"1.3": renamed, "1.4": STUB}, before=body), "1.1"),
            ("missing", *PASSED[1:]),
        ),
        "wrong": (
            submission(
                {
                    "1.1": first.replace("model.state_dict()", "model.nothing()"),
                    "1.2": f"{second}\n1 / 0",
                    "1.3": third.replace("    if isinstance(batch, dict)", ENDLESS),
                    "1.4": WRONG,
                }
            ),
            ("wrong",) * 4,
        ),
        "no Python": (
            submission({"1.3": f"{third}\nfor", "1.4": "def model_bytes(model, dtype:"}),
            ("passed", "passed", "wrong", "wrong"),
        ),
        "ends": (
            submission(
                {
                    "1.1": f"import os\nos._exit(0)\n{first}",
                    "1.2": f"import os\nos.kill(os.getpid(), 9)\n{second}",
                    "1.3": f"import sys\nsys.exit(0)\n{third}",
                    "1.4": CALLED.format("__import__('os')._exit(0)"),
                }
            ),
            ("ended", "ended", "wrong", "wrong"),
        ),
        "never ends in its cell": (
            submission({"1.1": f"{first}\nimport time\nwhile True: time.sleep(1)"}),
            ("endless", *PASSED[1:]),
        ),
        "patched": (
            submission({"1.1": PATCHED + first, "1.3": EMPTIED + third, "1.4": PATCHED_TENSOR + WRONG}),
            ("tampered", "passed", "tampered", "tampered"),
        ),
        "forged": (  # a check of its own, and a verdict that it writes itself
            submission(
                {
                    "1.3": "def check(*_):\n    return 'passed'\ndef move(batch, device):\n    return batch",
                    "1.4": FORGED.format(WRONG),
                }
            ),
            ("passed", "passed", "wrong", "wrong"),
        ),
    }


PLANNED = planned()


def grade(*arguments):
    command = [sys.executable, "-m", "course_utils.grade", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)


UNREADABLE = {  # name: (text, what is said)
    "empty": ("", "is no notebook"),
    "no notebook": ("[1, 2]", "is no notebook"),
    "a page": ("<html>", "is no notebook"),
    "of another chapter": (
        notebooks.notebook_paths(["00"])[0].read_text(),
        "is of chapter 00, and chapter 01 is marked",
    ),
    "large": ("0" * 100_000_000, "has 100 MB, and no more than 20 are read"),
}


# One test, so that two that run at a time do not both mark everything.
@pytest.mark.timeout(900)
def test_submissions_are_marked_as_planned_and_nothing_is_left(tmp_path):
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    port, visits = open_port()
    for name, (nb, _) in PLANNED.items():
        version = 3 if name.endswith("format of 2014") else 4
        text = nbformat.writes(nbformat.convert(nb, version), version)
        (inbox / f"{name}.ipynb").write_text(text.replace("PORT", str(port)))
    for name, (text, _) in UNREADABLE.items():
        (inbox / f"{name}.ipynb").write_text(text)
    course = {path: path.read_bytes() for path in (ROOT / "course_utils").rglob("*.py")}
    folders = set(Path(tempfile.gettempdir()).glob("course-grade-*"))

    files = ["--csv", tmp_path / "marks.csv", "--json", tmp_path / "marks.json"]
    done = grade(inbox, "--chapter", "01", "--limit", LIMIT_S, "--jobs", 2, *files)

    rows = {}
    for row in csv.DictReader((tmp_path / "marks.csv").open()):
        rows.setdefault(row["submission"], {})[row["exercise"]] = row
    found = {name: tuple(rows[name][number]["state"] for number in NUMBERS) for name in PLANNED}
    planned = {name: states for name, (_, states) in PLANNED.items()}
    assert found == planned, [
        (name, number, rows[name][number]["reason"])
        for name in PLANNED
        for number, state, plan in zip(NUMBERS, found[name], planned[name], strict=True)
        if state != plan
    ]
    for name in PLANNED:
        for row in rows[name].values():
            assert row["reason"] and row["passed"] == str(int(row["state"] == "passed"))

    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr  # some could not be read
    for name, (_, words) in UNREADABLE.items():
        assert rows[name][""]["state"] == "unreadable" and words in rows[name][""]["reason"]
        assert any(line.startswith(name) and words in line for line in done.stdout.splitlines())
    line = next(line for line in done.stdout.splitlines() if line.startswith("wrong ") and "of 4" in line)
    assert line.split()[1:] == ["✗", "✗", "✗", "✗", "0", "of", "4"]
    content = json.loads((tmp_path / "marks.json").read_text())["submissions"]
    assert {each["submission"] for each in content} == rows.keys()
    assert next(each for each in content if each["submission"] == "no Python")["passed"] == 2

    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "4242"]]
    assert set(Path(tempfile.gettempdir()).glob("course-grade-*")) <= folders
    assert {path: path.read_bytes() for path in course} == course
    if os.geteuid() == 0:
        assert not visits


# Without running anything


def test_a_file_that_is_there_is_not_written_over(tmp_path):
    (tmp_path / "marks.csv").write_text("precious")
    done = grade(CHAPTER, "--csv", tmp_path / "marks.csv")
    assert done.returncode == 2 and "is there already" in done.stderr
    assert (tmp_path / "marks.csv").read_text() == "precious"


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["none.ipynb"], "there is no none.ipynb"),
        (["tests/wrong_answers"], "holds no notebook"),
        (["notebooks", "--chapter", "99"], "no chapter '99'"),
    ],
)
def test_arguments_that_cannot_be_right(arguments, said):
    done = grade(*arguments)
    assert done.returncode != 0 and said in done.stderr and "Traceback" not in done.stderr


def test_a_fault_is_no_wrong_answer():
    """Neither in the points of a spreadsheet nor in the table, and no text becomes a formula."""
    marked = {"=cmd()": [Verdict("9.1", "passed", "fine"), Verdict("9.2", "fault", "no port was free")]}
    rows = list(csv.DictReader(report.as_csv(marked).splitlines()))
    assert [row["passed"] for row in rows] == ["1", ""] and rows[0]["submission"] == "'=cmd()"
    assert "? not judged" in report.tables(marked) and "no port was free" in report.reasons(marked)


def test_a_chapter_is_known_by_its_exercises(tmp_path):
    for path in notebooks.notebook_paths():
        assert submissions.read("x", path).chapter.number == path.name[:2]


def test_each_chapter_has_a_table():
    marked = {"a": [Verdict("10.1", "passed", "")], "b": "is no notebook", "c": [Verdict("9.1", "open", "")]}
    assert [line.split() for line in report.tables(marked).splitlines() if line and " not " not in line] == [
        ["submission", "9.1", "passed"],
        ["c", "○", "0", "of", "1"],
        ["submission", "10.1", "passed"],
        ["a", "✓", "1", "of", "1"],
        ["✓", "passed"],
        ["b:", "is", "no", "notebook"],
    ]
