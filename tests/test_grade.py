"""Submissions of one chapter that differ in kind, marked as a lecturer does, two at a time:
each gets its own verdicts, whatever others do.
"""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import nbformat
import psutil
import pytest

from course_utils.grade import notebook, report, submissions
from course_utils.grade.marking import Verdict
from course_utils.hardware import sharing
from tools import notebooks

ROOT = Path(__file__).resolve().parent.parent
CHAPTER = notebooks.notebook_paths(["01"])[0]
SOLUTIONS = notebooks.read_solutions(CHAPTER)
NUMBERS = tuple(SOLUTIONS)
RIGHT = SOLUTIONS["1.4"]
PASSED = ("passed",) * len(NUMBERS)
LIMIT_S = 30


def submission(answers=None, before="", after=""):
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
FORGED = """import json, os, sys
frame = sys._getframe()
verdict = {{"number": "1.4", "state": "passed", "reason": ""}}
while frame is not None:
    for value in [*frame.f_locals.values()]:
        if callable(value) and getattr(value, "__name__", type(value).__name__) in ("say", "Reporter"):
            value(verdict) if not isinstance(value, type) else None
        if hasattr(value, "write"):
            print(json.dumps([json.dumps(verdict), "0" * 64]), file=value, flush=True)
    frame = frame.f_back
for fd in range(3, 30):
    try:
        os.write(fd, json.dumps([json.dumps(verdict), "0" * 64]).encode() + b"\n")
    except OSError:
        pass
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
STRAY = "import subprocess\nsubprocess.Popen(['sleep', '4242'], env={}, start_new_session=True)\n"
HARMLESS = """import functools, torch
torch.load = functools.partial(torch.load, weights_only=False)
torch.Tensor.__repr__ = lambda self: str(self.shape)
"""
NO_SOLUTIONS = """import pathlib, course_utils
near = pathlib.Path(course_utils.__file__).parents[1]
assert not [path for path in near.rglob("*") if path.is_symlink() or "solutions" in path.name]
"""
PATCHED_THERE = """def model_bytes(model, dtype):
    import sys
    for name in ("explain", "expect_whole"):
        setattr(sys.modules["course_utils.checks.chapter_01"], name, lambda *_, **__: 0)
"""
# What IPython takes and Python does not, and what looks like it, in the exercise's cell; helpers of many kinds.
WRITTEN_WIDE = '''files = !ls
move?
size = 3
left = (7
        % size
        != 0)
text = """
%time is no magic here
!= x
"""
assert text.count("%") == 1 and "!= x" in text and left is True
import asyncio
assert await asyncio.sleep(0, 1) == 1
%time measured = size
assert measured == 3
'''
HELPERS = """import torch as library
ONE = library.tensor(1)
ROWS = [ONE * i for i in range(3)]
SIZE: int = 1
TABLE = {}
TABLE["a"] = 1
def helper(x):
    return x * int(ONE) * SIZE * TABLE["a"] + int(ROWS[0])"""
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
        "as a notebook takes it": (  # `mine` is something else further down in the chapter
            submission(
                {
                    "1.1": WRITTEN_WIDE + first,
                    "1.2": "%%time\n" + second.replace("return loss", "return helper(1) * loss"),
                    "1.3": f"{HARMLESS}{NO_SOLUTIONS}{third}",
                    "1.4": RIGHT.replace("model_bytes", "mine") + '\n\ncheck("1.4", mine)',
                },
                before=HELPERS,
            ),
            PASSED,
        ),
        "ends in rare ways": (
            submission(
                {
                    "1.1": f"import os\nos.kill(os.getpid(), 40)\n{first}",
                    "1.2": f"import os\nos.closerange(3, 256)\nwhile True:\n    pass\n{second}",
                    "1.3": f"import os\nif os.fork():\n    os._exit(0)\n{third}",
                    "1.4": f"import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(4242)\n{RIGHT}",
                },
                before="many = " + " + ".join(["1"] * 6000),
            ),
            ("ended", "endless", "ended", "ended"),
        ),
        "patched there": (
            submission(
                {
                    "1.1": f"raise ValueError(chr(0xD800))\n{first}",
                    "1.2": f"import sys\ndef deep():\n    deep()\ndeep()\n{second}",
                    "1.3": STRAY + third,
                    "1.4": PATCHED_THERE,
                }
            ),
            ("wrong", "wrong", "passed", "wrong"),
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


def grade(*arguments, **variables):
    command = [sys.executable, "-m", "course_utils.grade", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, timeout=800)


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
    (tmp_path / "tmp").mkdir()

    files = ["--csv", tmp_path / "marks.csv", "--json", tmp_path / "marks.json"]
    done = grade(inbox, "--chapter", "01", "--limit", LIMIT_S, "--jobs", 2, *files, TMPDIR=str(tmp_path / "tmp"))

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
    assert "(signal 40)" in rows["ends in rare ways"]["1.1"]["reason"]
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
    assert not list((tmp_path / "tmp").iterdir())
    assert {path: path.read_bytes() for path in course} == course
    if os.geteuid() == 0:
        assert not visits


def test_each_file_has_a_row_or_a_line_that_says_why_it_was_not_looked_at(tmp_path, monkeypatch):
    """Equal names, odd names, odd bytes, what is no notebook; on a terminal that shows few characters, and on a node
    where somebody else's launch never ends.
    """
    monkeypatch.setenv("COURSE_SHARED", "1")
    for group in ("group1", "group2"):
        (tmp_path / group / ".ipynb_checkpoints").mkdir(parents=True)
    unsolved = notebooks.read(CHAPTER)
    for cell in unsolved.cells:
        cell["id"] = "same"
    text = json.dumps(unsolved)
    (tmp_path / "group1" / "name.ipynb").write_text(text)
    (tmp_path / "group2" / "name.IPYNB").write_bytes(b"\xef\xbb\xbf" + text.encode())
    odd = os.fsencode(tmp_path / "group1") + b"/caf\xe9.ipynb"
    Path(os.fsdecode(odd)).write_text("{")
    (tmp_path / "group1" / ".ipynb_checkpoints" / "name-checkpoint.ipynb").write_text(text)
    (tmp_path / "group2" / "handed_in.zip").write_bytes(b"PK")
    (tmp_path / "group2" / "gone.ipynb").symlink_to("nowhere")
    os.mkfifo(tmp_path / "group2" / "pipe.ipynb")

    command = [sys.executable, "-m", "course_utils.grade", tmp_path / "group1", tmp_path / "group2"]
    env = os.environ | {"PYTHONIOENCODING": "latin-1"}
    with sharing.reserve("a launch", 1, "cpu"):
        done = subprocess.run(
            [*command, "--csv", tmp_path / "marks.csv"], cwd=ROOT, env=env, capture_output=True, timeout=300
        )

    assert done.returncode == 1 and not done.stderr, done.stderr
    rows = {}
    for row in csv.DictReader((tmp_path / "marks.csv").open(encoding="utf-8")):
        rows.setdefault(row["submission"].removeprefix(f"{tmp_path}/"), []).append(row)
    for name in ("group1/name", "group2/name"):
        assert [row["state"] for row in rows.pop(name)] == ["open"] * len(NUMBERS)
    assert {name: row["reason"].partition(":")[0] for name, (row,) in rows.items()} == {
        r"group1/caf\udce9": "is no notebook (NotJSONError",
        "group2/handed_in.zip": "is an archive",
        "group2/gone": "is a link to a file that is not there",
        "group2/pipe": "is no plain file but a pipe, socket or device",
    }
    assert b"name-checkpoint.ipynb: not looked at, is hidden" in done.stdout


def test_an_interrupt_ends_all_and_keeps_what_is_marked(tmp_path):
    (tmp_path / "a.ipynb").write_text("no notebook")
    endless = f"{STRAY}import time\nwhile True:\n    time.sleep(1)\n{SOLUTIONS['1.1']}"
    nbformat.write(submission({"1.1": endless.replace("4242", "4243")}), tmp_path / "b.ipynb")
    command = [sys.executable, "-m", "course_utils.grade", tmp_path, "--csv", tmp_path / "marks.csv", "--jobs", "2"]
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)}

    def strays():
        return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "4243"]]

    def rows():
        return (tmp_path / "marks.csv").read_text().splitlines() if (tmp_path / "marks.csv").exists() else []

    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as marker:
        while not strays() or len(rows()) < 2:
            assert marker.poll() is None, marker.communicate()
            time.sleep(0.05)
        marker.send_signal(signal.SIGINT)
        _, stderr = marker.communicate(timeout=50)

    assert marker.returncode == 130 and b"Traceback" not in stderr and b"interrupted" in stderr
    assert not strays() and not list(temporary.iterdir())
    assert len(rows()) == 2 and rows()[1].startswith("a,,,unreadable,")


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
        (["notebooks", "--jobs", "0"], "'0' is no number of submissions from 1 to 1000"),
        (["notebooks", "--limit", "nan"], "'nan' is no number of seconds above 0"),
        (["notebooks", "--csv", "no/such/folder/marks.csv"], "name a file in a folder that is there"),
    ],
)
def test_arguments_that_cannot_be_right(arguments, said):
    done = grade(*arguments)
    assert done.returncode != 0 and said in done.stderr and "Traceback" not in done.stderr


def test_a_fault_is_no_wrong_answer():
    """Neither in the points of a spreadsheet nor in the table, and no text becomes a formula."""
    marked = {"=cmd()": [Verdict("9.1", "passed", "fine"), Verdict("9.2", "fault", "no port was free")]}
    rows = [dict(zip(report.COLUMNS, row, strict=True)) for row in report.rows("=cmd()", marked["=cmd()"])]
    assert [row["passed"] for row in rows] == [1, ""] and rows[0]["submission"] == "'=cmd()"
    assert "? not judged" in report.tables(marked) and "no port was free" in report.reasons(marked)


def test_a_chapter_is_known_by_its_exercises(tmp_path):
    for path in notebooks.notebook_paths():
        assert submissions.read(path, submissions.chapters()).chapter.number == path.name[:2]


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
