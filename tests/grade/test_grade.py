"""Submissions of different kinds, each with its own verdicts whatever others do.

Those that differ in what is written are marked in one process, one after another. Those that end their process or leave
something behind are marked as a lecturer does, two at a time.
"""

import csv
import json
import os
import py_compile
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import nbformat
import psutil
import pytest

from course_utils.grade import __main__, chapter_cells, inbox, isolation, marking, report, submissions
from course_utils.grade.marking import Verdict
from course_utils.hardware import sharing
from tests.helpers import another_user
from tools import notebooks

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = notebooks.notebook_paths(["01"])[0]
SOLUTIONS = notebooks.read_solutions(CHAPTER)
NUMBERS = tuple(SOLUTIONS)
RIGHT = SOLUTIONS["1.4"]
PASSED = ("passed",) * len(NUMBERS)
STAYS = f"4242.{os.getpid()}"  # for how long what is not to stay would: a number of this run alone


# Whether the system lets the marker hide files; and what an answer can then see of others' and of the marks.
HIDES_FILES = isolation.can_leave_files()
SPY = f"""import os
assert not os.path.exists("INBOX") or not os.listdir("INBOX")
assert not os.path.exists("MARKS") or not os.path.getsize("MARKS")
for name in ("notebooks/solutions", "tests", ".git", "my_course", "build/solved"):
    folder = os.path.join({str(ROOT)!r}, name)
    assert not os.path.isdir(folder) or not os.listdir(folder), folder
"""


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


def cell_of(number):
    nb = notebooks.read(CHAPTER)
    return nb.cells[notebooks.exercises(nb)[number]].source


STUB = chapter_cells.answer_and_check(cell_of("1.4"))[0]
CALLED = "def model_bytes(model, dtype):\n    {}\n    return 0"
FORGED = """import json, os, sys
frame = sys._getframe()
verdict = {{"number": "1.1", "state": "passed", "reason": ""}}
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
print("✓ Exercise 1.1: passed")
{}"""
ASLEEP = "    __import__('time').sleep(4242)\n    return"
SLEEPER = f"import subprocess\nsubprocess.Popen(['sleep', '{STAYS}'], start_new_session=True)\n"
THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(4242,)).start()\n"
PATCHED = "from course_utils import checks\nchecks.of_chapter(1).check_1_4 = lambda answer: 'ok'\n"
CALL_HOME = """import socket
try:
    socket.create_connection(("127.0.0.1", PORT), timeout=2)
except OSError:
    pass
"""
STRAY = f"import subprocess\nsubprocess.Popen(['sleep', '{STAYS}'], env={{}}, start_new_session=True)\n"
FULL_PRECISION = "import torch\nassert not torch.backends.cudnn.allow_tf32\n"  # as a chapter's first cell has it
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
        setattr(sys.modules["course_utils.chapters.c01_devices.check"], name, lambda *_, **__: 0)
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
EMPTIED = "from course_utils import checks\nopen(checks.of_chapter(1).__file__, 'w').close()\n"
CHECK_01 = "course_utils.chapters.c01_devices.check"
BORROWED = f"from {CHECK_01} import _count"


def written():
    """{name: (notebook, states of 1.1 to 1.4)}: answers written in many ways, four in a notebook where that goes."""
    first, second, third = SOLUTIONS["1.1"], SOLUTIONS["1.2"], SOLUTIONS["1.3"]
    body = RIGHT.partition("\n")[2]
    renamed = third.replace("move(", "move_all(") + '\n\ncheck("1.3", move_all)'
    elsewhere = submission({"1.3": renamed, "1.4": STUB}, before=body)
    del elsewhere.cells[notebooks.exercises(elsewhere)["1.1"]]
    return {
        "right in other ways": (  # magics; what a cell computes; a lost first line; a helper's cell; a name used again
            submission(
                {
                    "1.1": f"%matplotlib inline\n!ls\n{FULL_PRECISION}{first}",
                    "1.2": "ONE = one_of_them()\n" + second.replace("return loss", "return (ONE - computed) + loss"),
                    "1.3": third.replace("# Exercise 1.3", "# my own answer"),
                    "1.4": "def model_bytes(model, dtype):\n    return helper(model, dtype)",
                },
                before=body.replace("model_bytes", "helper") + "\none_of_them = (lambda: 1)\ncomputed = one_of_them()",
                after="def list_state(model):\n    return 'just playing'",
            ),
            PASSED,
        ),
        "right elsewhere": (elsewhere, ("missing", *PASSED[1:])),
        "as a notebook takes it": (  # `mine` is something else further down in the chapter
            submission(
                {
                    "1.1": WRITTEN_WIDE + first,
                    "1.2": "%%time\n" + second.replace("return loss", "return helper(1) * loss"),
                    "1.3": f"{HARMLESS}{third}",
                    "1.4": RIGHT.replace("model_bytes", "mine") + '\n\ncheck("1.4", mine)',
                },
                before=HELPERS,
            ),
            PASSED,
        ),
        "fails": (
            submission(
                {
                    "1.1": first.replace("model.state_dict()", "model.nothing()"),
                    "1.2": f"{second}\n1 / 0",
                    "1.3": f"import sys\nsys.exit(0)\n{third}",
                    "1.4": CALLED.format("__import__('os')._exit(0)"),
                },
                before="many = " + " + ".join(["1"] * 6000),
            ),
            ("wrong",) * 4,
        ),
        "fails in rare ways": (
            submission(
                {
                    "1.1": f"raise ValueError(chr(0xD800))\n{first}",
                    "1.2": f"import sys\ndef deep():\n    deep()\ndeep()\n{second}",
                    "1.3": f"{third}\nfor",
                    "1.4": PATCHED_THERE,
                }
            ),
            ("wrong",) * 4,
        ),
        "takes the answer from its check": (  # in the answer, by a helper in another cell, by name; not beside it
            submission(
                {
                    "1.1": first,
                    "1.2": f"import importlib\nimportlib.import_module('{CHECK_01}')\n{second}",
                    "1.3": third.replace("    return", "    helper\n    return", 1),
                    "1.4": CALLED.format(f"{BORROWED}\n    return _count(model, dtype)"),
                },
                before=f"{BORROWED} as theirs\ndef helper(*given):\n    return theirs(*given)",
            ),
            ("passed", *("wrong",) * 3),
        ),
        "no Python, and a check of its own": (
            submission(
                {
                    "1.1": chapter_cells.answer_and_check(cell_of("1.1"))[0],
                    "1.2": "def train_step(model, optimizer, x, y):\n    import sys\n    sys.exit('done')",
                    "1.3": "def check(*_):\n    return 'passed'\ndef move(batch, device):\n    return batch",
                    "1.4": "def model_bytes(model, dtype:",
                }
            ),
            ("open", "wrong", "wrong", "wrong"),
        ),
    }


def lived():
    """{name: (notebook, states of 1.1 to 1.4)}: what does something to its process, or to others."""
    first, second, third = SOLUTIONS["1.1"], SOLUTIONS["1.2"], SOLUTIONS["1.3"]
    return {
        "group1/name": (  # right, and leaves traces
            submission(
                {
                    "1.1": f"print('x' * 20_000_000)\n{first}",
                    "1.2": SLEEPER + second,
                    "1.3": f"{THREAD}{NO_SOLUTIONS}{SPY * HIDES_FILES}{third}",
                    "1.4": CALL_HOME + RIGHT,
                }
            ),
            PASSED,
        ),
        "ends": (
            submission(
                {
                    "1.2": f"import os\nos.kill(os.getpid(), 40)\n{second}",
                    "1.3": f"import os\nif os.fork():\n    os._exit(0)\n{third}",
                    "1.4": f"{STRAY}import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(4242)\n{RIGHT}",
                }
            ),
            ("passed", *("ended",) * 3),
        ),
        "patched": (  # 1.1 writes a verdict itself; the worker of 1.2 never ends
            submission(
                {
                    "1.1": FORGED.format("def list_state(model):\n    return []"),
                    "1.2": second.replace("    return", ASLEEP),
                    "1.3": EMPTIED + third,
                    "1.4": PATCHED + RIGHT,
                }
            ),
            ("wrong", "endless", "tampered", "tampered"),
        ),
    }


JUDGED_HERE = """
import json, sys
from course_utils.grade import judging, submissions
chapters = {number: vars(chapter) for number, chapter in submissions.chapters().items()}
found = {}
for path in sys.argv[2:]:
    task = {"path": path.encode().hex(), "chapters": chapters, "chapter": None, "limit_s": 60, "offline": 0, "done": []}
    task |= {"hidden": [], "writable": [], "memory_bytes": None}
    found[path] = [said for said in judging.messages(task) if "state" in said]
json.dump(found, open(sys.argv[1], "w"))
"""


def verdicts_of(notebooks_by_name, folder):
    """{name: {exercise: what is said of it}}, all judged by one process, as that of a submission does."""
    paths = {name: str(folder / f"{name}.ipynb") for name in notebooks_by_name}
    for name, nb in notebooks_by_name.items():
        nbformat.write(nb, paths[name])
    command = [sys.executable, "-c", JUDGED_HERE, folder / "found.json", *paths.values()]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "found.json").read_text())
    return {name: {said["number"]: said for said in found[path]} for name, path in paths.items()}


def test_answers_are_judged_however_they_are_written(tmp_path):
    plan = written()
    found = verdicts_of({name: nb for name, (nb, _) in plan.items()}, tmp_path)
    for name, (_, states) in plan.items():
        assert tuple(found[name][number]["state"] for number in NUMBERS) == states, found[name]
        assert all(said["reason"] for said in found[name].values())
    for said in [*found["takes the answer from its check"].values()][1:]:
        assert said["reason"] == f"its code uses {CHECK_01}, the module that judges it: write the answer without it"
    exits = "sys.exit(), exit() or quit() ended the"
    assert found["fails"]["1.3"]["reason"] == f"{exits} cell, in line 2 of exercise 1.3: sys.exit(0)"
    said = found["no Python, and a check of its own"]["1.2"]["reason"]  # none of the check's own lines
    assert said == f"your code failed in a worker:\nrank 0: RuntimeError: {exits} program before your function returned"


def grade(*arguments, **variables):
    command = [sys.executable, "-m", "course_utils.grade", *map(str, arguments)]
    env = os.environ | variables
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, encoding="latin-1", timeout=800)


def strays():
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", STAYS]]


def hand_in(group1, group2):
    """Equal and odd names, odd bytes, and what is no notebook, in two folders; {name: why it has no verdicts}."""
    for group in (group1, group2):
        (group / ".ipynb_checkpoints").mkdir(parents=True)
    other = json.loads(notebooks.notebook_paths(["00"])[0].read_text())
    for cell in other["cells"]:
        cell["id"] = "same"
    (group2 / "name.IPYNB").write_bytes(b"\xef\xbb\xbf" + json.dumps(other).encode())
    Path(os.fsdecode(os.fsencode(group1) + b"/caf\xe9.ipynb")).write_text("{")
    (group1 / ".ipynb_checkpoints" / "name-checkpoint.ipynb").write_text("")
    (group1 / "Empty.ipynb").write_text("\n")
    (group1 / "large.ipynb").write_text("0" * 100_000_000)
    (group2 / "handed_in.zip").write_bytes(b"PK")
    with zipfile.ZipFile(group2 / "renamed.ipynb", "w") as archive:
        archive.writestr("name.ipynb", "{}")
    (group2 / ".ipynb").write_text("{}")
    (group2 / "merged.ipynb").write_text('{\n<<<<<<< HEAD\n "cells": [],\n=======\n>>>>>>> theirs\n "metadata": {}\n}')
    (group2 / "gone.ipynb").symlink_to("nowhere")
    os.mkfifo(group2 / "pipe.ipynb")
    return {
        r"caf\udce9": "is cut off or damaged: its text breaks in line 1",
        "Empty": "is empty",
        "large": "has 100 MB, and no more than 20 are read",
        "group2/name": "is of chapter 00, and chapter 01 is marked",
        "handed_in.zip": "is an archive",
        "renamed": "is an archive",
        "merged": "has git's conflict markers",
        "gone": "is a link to a file that is not there",
        ".ipynb": "is hidden, since its name",
        "pipe": "is no plain file but a pipe, socket or device",
    }


# One test, so that two that run at a time do not both mark everything.
@pytest.mark.timeout(900)
def test_submissions_are_marked_whatever_they_do_and_nothing_is_left(tmp_path):
    """On a terminal that shows few characters, and on a node where somebody else's launch never ends."""
    group1, group2, temporary = (tmp_path / name for name in ("group1", "group2", "tmp"))
    unreadable = hand_in(group1, group2)
    temporary.mkdir()
    port, visits = open_port()
    plan = lived()
    for name, (nb, _) in plan.items():
        version = 3 if "/" in name else 4
        text = nbformat.writes(nbformat.convert(nb, version), version).replace("PORT", str(port))
        text = text.replace("INBOX", str(group2)).replace("MARKS", str(tmp_path / "marks.csv"))
        (group1 / f"{Path(name).name}.ipynb").write_text(text)
    course = {path: path.read_bytes() for path in (ROOT / "course_utils").rglob("*.py")}

    files = ["--csv", tmp_path / "marks.csv", "--json", tmp_path / "marks.json", "--feedback", tmp_path / "feedback"]
    variables = {"TMPDIR": str(temporary), "PYTHONIOENCODING": "latin-1", "COURSE_SHARED": "1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_SHARED", "1")
        with sharing.reserve("a launch", 1, "cpu"):
            done = grade(group1, group2, "--chapter", "01", "--jobs", 2, *files, **variables)

    rows = {}
    for row in csv.DictReader((tmp_path / "marks.csv").open(encoding="utf-8-sig")):
        name = row["submission"].removeprefix(f"{tmp_path}/")
        rows.setdefault(name if name.endswith("/name") else Path(name).name, {})[row["exercise"]] = row
    assert rows.keys() == plan.keys() | unreadable.keys()
    for name, (_, states) in plan.items():
        found = rows[name]
        assert tuple(found[number]["state"] for number in NUMBERS) == states, found
        assert all(row["reason"] and row["passed"] == str(int(row["state"] == "passed")) for row in found.values())
    assert "(signal 40)" in rows["ends"]["1.2"]["reason"]
    said = rows["patched"]["1.2"]["reason"]  # 20 s are a third of the limit
    assert said.startswith("your code did not end within 20 s:\nrank 0 was at <exercise 1.2>, line ")
    assert (tmp_path / "marks.csv").read_bytes().startswith(b"\xef\xbb\xbf")
    for name, words in unreadable.items():
        assert rows[name][""]["state"] == "unreadable" and words in rows[name][""]["reason"]

    assert done.returncode == 1 and bool(done.stderr) != HIDES_FILES, done.stderr  # some could not be read
    assert "name-checkpoint.ipynb: not looked at, is hidden" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if "/ends " in line and line.endswith("1 of 4"))
    assert len(line.split()) == 1 + len(NUMBERS) + 3
    assert done.stdout.splitlines()[-1].startswith("Not judged, so that the exit code is not 0: ")
    names = {each["file"]: each["passed"] for each in csv.DictReader((tmp_path / "feedback/totals.csv").open())}
    assert {path.name for path in (tmp_path / "feedback").iterdir()} == {*names, "totals.csv"} and "4" in names.values()
    content = {each["submission"]: each for each in json.loads((tmp_path / "marks.json").read_text())["submissions"]}
    assert len(content) == len(rows)
    assert next(each for name, each in content.items() if name.endswith("group1/name"))["passed"] == 4

    assert not strays() and not list(temporary.iterdir())
    assert {path: path.read_bytes() for path in course} == course
    if os.geteuid() == 0:
        assert not visits


def test_what_never_ends_is_ended(tmp_path):
    """Of the chapter with one exercise, and a limit that is short: no right answer is judged by it."""
    (chapter,) = notebooks.notebook_paths(["00"])
    late = "your code did not end within 3 s"
    endless = {
        late: "time.sleep(4242)\n",
        f"{late}, and it closed the file on which it is heard": "os.closerange(3, 256)\ntime.sleep(4242)\n",
        "its code stopped its own process": "os.kill(os.getpid(), 19)\n",
    }
    solutions = notebooks.read_solutions(chapter)
    for i, source in enumerate(endless.values()):
        nb = notebooks.put_in(notebooks.read(chapter), solutions)
        nb.cells[notebooks.exercises(nb)["0.1"]].source = f"import os, time\n{source}{solutions['0.1']}"
        nbformat.write(nb, tmp_path / f"{i}.ipynb")
    done = grade(tmp_path, "--limit", 3, "--jobs", 3, "--csv", tmp_path / "marks.csv")
    assert done.returncode == 0 and not done.stderr
    rows = [*csv.DictReader((tmp_path / "marks.csv").open())]
    assert {(row["state"], row["reason"]) for row in rows} == {("endless", reason) for reason in endless}


# Right, but in the first calls of ranks 0 and 1 it sleeps, and no frame is a cell's.
HALTED = """import functools
whoami = functools.partial(eval, '''(
    lambda dist, os, time: (dist.get_rank(), dist.get_world_size()) if SLEPT else (
        open(f"FLAG{dist.get_rank()}", "w").close() or time.sleep(4242)
    )
)(*(__import__(name, fromlist=["*"]) for name in ("torch.distributed", "os", "time")))''')
"""


def test_time_that_is_up_outside_of_the_answer_is_no_wrong_answer(tmp_path):
    """As when a machine pauses while a worker imports: once, and always; and a sleep of the answer's own."""
    (chapter,) = notebooks.notebook_paths(["00"])
    (right,) = notebooks.read_solutions(chapter).values()
    flag = Path("/dev/shm") / f"course-test-{os.getpid()}-"
    answers = {
        "once": HALTED.replace("SLEPT", 'dist.get_rank() > 1 or os.path.exists(f"FLAG{dist.get_rank()}")').replace(
            "FLAG", str(flag)
        ),
        "always": HALTED.replace("SLEPT", "False").replace("FLAG", str(flag)),
        "sleeps": right.replace("    return", ASLEEP),
    }
    for name, source in answers.items():
        nbformat.write(notebooks.put_in(notebooks.read(chapter), {"0.1": source}), tmp_path / f"{name}.ipynb")
    try:
        done = grade(tmp_path, "--limit", 24, "--jobs", 3, "--csv", tmp_path / "marks.csv")
    finally:
        for path in flag.parent.glob(f"{flag.name}*"):
            path.unlink()
    rows = {row["submission"]: row for row in csv.DictReader((tmp_path / "marks.csv").open(encoding="utf-8-sig"))}
    states = {name: row["state"] for name, row in rows.items()}
    assert states == {"once": "passed", "always": "fault", "sleeps": "endless"}, rows
    assert rows["sleeps"]["reason"].startswith("your code did not end within 8 s:\nrank")
    last = "Not judged, so that the exit code is not 0: always (0.1)"
    assert done.returncode == 1 and done.stdout.splitlines()[-1] == last, done


def test_what_allocates_without_end_fails_alone_and_says_why(tmp_path):
    """In the judging process and in workers, in Python and in torch; the limit is per process, and small here."""
    more = "    kept = []\n    while True: kept.append(torch.ones(2**24))\n"
    answers = {
        "1.1": "kept = []\nwhile True: kept.append(bytearray(2**27))\n" + SOLUTIONS["1.1"],
        "1.2": SOLUTIONS["1.2"].replace("    return loss", more + "    return loss"),
        "1.4": RIGHT.replace(":\n", ":\n" + more, 1),
    }
    nbformat.write(submission(answers), tmp_path / "greedy.ipynb")
    done = grade(tmp_path, "--memory", 2, "--csv", tmp_path / "marks.csv")
    rows = {row["exercise"]: row for row in csv.DictReader((tmp_path / "marks.csv").open(encoding="utf-8-sig"))}
    assert done.returncode == 0, done.stderr
    assert [rows[number]["state"] for number in NUMBERS] == ["wrong", "wrong", "passed", "wrong"], rows
    for number in ("1.1", "1.2", "1.4"):
        assert rows[number]["reason"].endswith("(Each process of a submission gets 2 GiB of memory, and no more.)")
    assert "MemoryError" in rows["1.1"]["reason"] and "allocate memory" in rows["1.4"]["reason"]


def test_an_interrupt_ends_all_and_keeps_what_is_marked(tmp_path):
    (tmp_path / "a.ipynb").write_text("no notebook")
    nbformat.write(
        submission({"1.1": f"{STRAY}import time\ntime.sleep(4242)\n{SOLUTIONS['1.1']}"}), tmp_path / "b.ipynb"
    )
    command = [sys.executable, "-m", "course_utils.grade", tmp_path, "--csv", tmp_path / "marks.csv", "--jobs", "2"]
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)}

    def rows():
        return (tmp_path / "marks.csv").read_text().splitlines() if (tmp_path / "marks.csv").exists() else []

    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as marker:
        while not strays() or len(rows()) < 2:
            assert marker.poll() is None, marker.communicate()
            time.sleep(0.05)
        marker.send_signal(signal.SIGINT)
        _, stderr = marker.communicate(timeout=50)

    assert marker.returncode == 130 and b"Traceback" not in stderr and b"interrupted" in stderr
    assert f"--except {tmp_path}/marks.csv leaves them out".encode() in stderr
    assert not strays() and not list(temporary.iterdir())
    assert len(rows()) == 2 and rows()[1].startswith("a,,,unreadable,")


def test_what_an_earlier_table_has_is_left_out(tmp_path):
    """What has a row is not marked again; a late submission is, and one whose name would be a formula has its row."""
    inbox, first, second = (tmp_path / name for name in ("inbox", "marks.csv", "marks_2.csv"))
    inbox.mkdir()
    for name in ("=anna", "b\u00e9a"):
        (inbox / f"{name}.ipynb").write_text("no notebook")
    assert grade(inbox, "--csv", first).returncode == 1
    (inbox / "late.ipynb").write_text("")
    done = grade(inbox, "--except", first, "--csv", second, "--feedback", tmp_path / "feedback")
    assert done.stdout.splitlines()[0] == "1 of 1  late: is empty" and "anna" not in done.stdout, done
    assert [row["submission"] for row in csv.DictReader(second.open(encoding="utf-8-sig"))] == ["late"]
    assert len(list((tmp_path / "feedback").iterdir())) == 2
    done = grade(inbox, "--except", first, "--except", second)
    assert done.returncode == 0 and not done.stdout.strip(), done


# Without running anything


def test_compiled_modules_are_copied_and_their_change_is_seen(monkeypatch, tmp_path):
    """A student's code could change them instead of the sources."""
    shutil.copytree(ROOT / "course_utils", tmp_path / "course_utils", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("data", "notebooks"):
        (tmp_path / name).mkdir()
    compiled = Path(py_compile.compile(str(tmp_path / "course_utils" / "models.py")))
    monkeypatch.setattr(marking, "PACKAGE", tmp_path / "course_utils")
    with marking.fresh_course() as folder:
        copy = folder / "course" / compiled.relative_to(tmp_path)
        assert copy.read_bytes() == compiled.read_bytes()
        source = copy.parents[1] / "models.py"  # whose time the compiled module names
        assert source.stat().st_mtime_ns == (tmp_path / "course_utils" / "models.py").stat().st_mtime_ns
        before = marking._stamps(folder / "course")
        copy.write_bytes(b"")
        assert marking._stamps(folder / "course") != before


def refused(capsys, *arguments):
    """(exit code, what is said) of the marker for arguments that it does not take."""
    with pytest.raises(SystemExit) as refusal:
        __main__.main([*map(str, arguments)])
    code = refusal.value.code
    return (code, capsys.readouterr().err) if isinstance(code, int) else (1, code)


def test_a_file_that_is_there_is_not_written_over(tmp_path, capsys):
    (tmp_path / "marks.csv").write_text("precious")
    code, said = refused(capsys, CHAPTER, "--csv", tmp_path / "marks.csv")
    assert code == 2 and f"to mark only what is not in it, add --except {tmp_path}/marks.csv" in said
    assert (tmp_path / "marks.csv").read_text() == "precious"


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["none.ipynb"], "there is no none.ipynb"),
        (["tests/chapters/c01"], "holds no notebook"),
        (["notebooks", "--chapter", "99"], "no chapter '99'"),
        (["notebooks", "--jobs", "0"], "'0' is no number of submissions from 1 to 1000"),
        (["notebooks", "--limit", "nan"], "'nan' is no number of seconds above 0"),
        (["notebooks", "--memory", "0.5"], "'0.5' is no number of GiB from 1 on"),
        (["notebooks", "--except", "README.md"], "README.md is no table that --csv has written"),
        (["notebooks", "--except", "none.csv"], "none.csv cannot be read"),
        (["notebooks", "--csv", "no/such/folder/marks.csv"], "name a file in a folder that is there"),
    ],
)
def test_arguments_that_cannot_be_right(arguments, said, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    code, text = refused(capsys, *arguments)
    assert code != 0 and said in text


def test_a_fault_is_no_wrong_answer():
    """Neither in the points of a spreadsheet nor in the table, and no text becomes a formula."""
    marked = {"=cmd()": [Verdict("9.1", "passed", "fine"), Verdict("9.2", "fault", "no port was free")]}
    rows = [dict(zip(report.COLUMNS, row, strict=True)) for row in report.rows("=cmd()", marked["=cmd()"])]
    assert [row["passed"] for row in rows] == [1, ""] and rows[0]["submission"] == "'=cmd()"
    assert "? not judged" in report.tables(marked) and "no port was free" in report.reasons(marked)


ATTEMPTS = """
import ctypes, json, os, subprocess, sys
from course_utils.grade import isolation
base = sys.argv[1]
if pid := os.fork():  # as the marker does: a process of one thread
    os.waitpid(pid, 0)
    os._exit(0)
def attempt(what):
    try: return what()
    except OSError: return "refused"
def write(path):
    with open(path, "w") as file: return file.write("forged")
assert isolation.leave_files([f"{base}/hidden", f"{base}/marks.csv", f"{base}/none"], [f"{base}/own"])
mend = f"umount {base}/hidden; mount -o remount,bind,rw /; ls {base}/hidden; touch {base}/there"
subprocess.run(["unshare", "-Um", "--map-root-user", "sh", "-c", mend], capture_output=True)
ctypes.CDLL(None).umount2(os.fsencode(f"{base}/hidden"), 2)
print(json.dumps({
    "hidden": os.listdir(f"{base}/hidden"),
    "marks": open(f"{base}/marks.csv").read(),
    "renamed": attempt(lambda: os.rename(f"{base}/marks.csv", f"{base}/older")),
    "beside": attempt(lambda: write(f"{base}/beside")),
    "own": attempt(lambda: write(f"{base}/own/file")),
    "shared": attempt(lambda: write(f"/dev/shm/{os.getpid()}") and os.unlink(f"/dev/shm/{os.getpid()}")),
    "parents": attempt(lambda: os.listdir(f"/proc/{os.getppid()}/root{base}/hidden")),
    "forged": attempt(lambda: write(f"{base}/marks.csv")),
}))
"""


@pytest.mark.skipif(not HIDES_FILES, reason="this system has no mount namespaces for this user")
@pytest.mark.parametrize("user", ["this one", "another"])
def test_of_the_files_code_sees_what_it_may_and_cannot_undo_it(tmp_path, user):
    if user == "another" and another_user.missing():
        pytest.skip(another_user.missing())
    (tmp_path / "hidden").mkdir()
    (tmp_path / "own").mkdir()
    for name in ("hidden/theirs.ipynb", "marks.csv"):
        (tmp_path / name).write_text("kept")
    (tmp_path / "attempts.py").write_text(ATTEMPTS)
    command = [sys.executable, str(tmp_path / "attempts.py"), str(tmp_path)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    if user == "another":
        command = [*command[:1], str(another_user.HOME / "attempts.py"), str(another_user.HOME)]
        command = another_user.as_another_user(tmp_path, *command, PYTHONPATH=str(ROOT), PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found["hidden"] == [] and found["marks"] == ""
    assert [found[name] for name in ("renamed", "beside", "parents")] == ["refused"] * 3
    assert found["own"] == 6 and found["shared"] is None
    assert (tmp_path / "marks.csv").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempts.py", "hidden", "marks.csv", "own"]


def test_names_that_deceive_are_shown_and_links_are_not_followed(tmp_path):
    (tmp_path / "theirs.ipynb").write_text("{}")
    handed_in = tmp_path / "inbox"
    handed_in.mkdir()
    (handed_in / "link.ipynb").symlink_to("../theirs.ipynb")
    odd = {
        "a\nb: 4 of 4 passed": r"a\nb: 4 of 4 passed",
        "\x1b[2Jgone": r"\x1b[2Jgone",
        "\u202eright to left": r"\u202eright to left",
        os.fsdecode(b"caf\xe9"): r"caf\udce9",
        "-rf": "-rf",
        "=1+1": "=1+1",
        "Zoë 李": "Zoë 李",
    }
    for name in odd:
        (handed_in / f"{name}.ipynb").write_text("{}")
    found = {name: why for name, _, why in inbox.find([handed_in])}
    said = {"link": "is a link, which is not followed: put a copy in its place"}
    assert found == dict.fromkeys(odd.values(), "") | said


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", " =1", '"=1"', "\n=1", "＝1", "－1"])
def test_no_text_is_a_formula(text):
    (row,) = report.rows(text, [Verdict("1.1", "wrong", text)])
    assert not {row[0][0], row[4][0]} & set(report.FORMULAS)
    assert row[0] == f"'{text}"
    assert report.harmless("fine: a = 1") == "fine: a = 1"


def test_a_chapter_is_known_by_its_exercises(tmp_path):
    for path in notebooks.notebook_paths():
        assert submissions.read(path, submissions.chapters()).chapter.number == path.name[:2]


def test_a_chapter_without_its_exercises_is_known_by_its_title(tmp_path):
    nb = notebooks.read(notebooks.notebook_paths(["00"])[0])
    del nb.cells[notebooks.exercises(nb)["0.1"]]
    nbformat.write(nb, tmp_path / "a.ipynb")
    found = submissions.read(tmp_path / "a.ipynb", submissions.chapters(), "00")
    assert found.chapter.number == "00" and submissions.cell_of("0.1", found.chapter, found.sources)[0] is None
    with pytest.raises(submissions.Unreadable, match="is of chapter 00, and chapter 01 is marked"):
        submissions.read(tmp_path / "a.ipynb", submissions.chapters(), "01")
    nb.cells = nb.cells[1:]
    nbformat.write(nb, tmp_path / "b.ipynb")
    with pytest.raises(submissions.Unreadable, match="holds no exercise of the course"):
        submissions.read(tmp_path / "b.ipynb", submissions.chapters())


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
