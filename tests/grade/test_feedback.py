"""What students are given back, and how a reason is worded and shown; nothing is run here."""

import csv
import json

import pytest

from course_utils.grade import feedback, inbox, report, submissions
from course_utils.grade.marking import Verdict
from course_utils.grade.wording import for_student, of_a_limit
from tools import notebooks

REASON = "your code failed in a worker:\nrank 0: ValueError: a\n\nTraceback of rank 0:\n  File\n    raise\x1b[2J"
MARKED = {
    "anna": [
        Verdict("1.1", "passed", "8 models were listed."),
        Verdict("1.2", "wrong", REASON),
        Verdict("1.3", "open", "not attempted"),
        Verdict("1.4", "fault", "Traceback of the marker's"),
    ],
    "Anna": [Verdict("0.1", "passed", "fine")],
    "=cmd()": "is empty",
    "bert": report.MarkersFault("could not be marked (KeyError: 1)"),
}
ANNA = """anna
Chapter 01: 1 of 4 exercises passed, 1 of 2 of the core ones. 1 not judged.

Exercise 1.1 (core): passed
    8 models were listed.

Exercise 1.2 (core): wrong
    your code failed in a worker:
    rank 0: ValueError: a

    Traceback of rank 0:
      File
        raise\\x1b[2J

Exercise 1.3 (further): not attempted

Exercise 1.4 (further): not judged
    This says nothing about your answer.
"""


def test_each_student_gets_a_text_and_the_lecturer_totals(tmp_path):
    feedback.write(tmp_path, MARKED)
    found = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir() if path.suffix == ".txt"}
    assert found == {
        "anna_feedback.txt": ANNA,
        "Anna_feedback_2.txt": "Anna\nChapter 00: 1 of 1 exercises passed, 1 of 1 of the core ones.\n\n"
        "Exercise 0.1 (core): passed\n    fine\n",
        "cmd()_feedback.txt": "=cmd()\n\nThis file could not be marked. It is empty.\n",
        "bert_feedback.txt": "bert\n\nThis file has not been marked yet; that is not your fault.\n",
    }
    content = (tmp_path / "totals.csv").read_bytes()
    assert content.startswith(b"\xef\xbb\xbfsubmission,chapter,passed,of,core_passed,core_of,note,file\n")
    assert [*csv.reader(content.decode("utf-8-sig").splitlines())][1:] == [
        ["anna", "01", "1", "4", "1", "2", "1 not judged", "anna_feedback.txt"],
        ["Anna", "00", "1", "1", "1", "1", "", "Anna_feedback_2.txt"],
        ["'=cmd()", "", "", "", "", "", "is empty", "cmd()_feedback.txt"],
        ["bert", "", "", "", "", "", "could not be marked (KeyError: 1)", "bert_feedback.txt"],
    ]


def test_names_of_files_are_harmless_and_differ():
    odd = [
        "../../etc/passwd",
        "-rf",
        "=1+1",
        ".hidden",
        "",
        "con",
        "a/b",
        "a_b",
        "A:b",
        "x" * 300,
        "x" * 301,
        "\u00e9",
        "e\u0301",
    ]
    found = feedback.file_names(odd + ["\u202etxt", "a\nb"])
    names = [*found.values()]
    assert found["../../etc/passwd"] == "_.._etc_passwd_feedback.txt" and found["con"] == "con_feedback.txt"
    assert len({name.casefold() for name in names}) == len(names) == 15
    for name in names:
        assert name.isprintable() and len(name.encode()) < 255 and not set(name) & set('<>:"/\\|?*')
        assert name[0] not in ".-~=' " and name.endswith(".txt")


def test_core_exercises_are_the_chapters():
    found = submissions.chapters()
    assert found["01"].core == ("1.1", "1.2") and all(chapter.core for chapter in found.values())
    assert all(set(chapter.core) <= chapter.stubs.keys() for chapter in found.values())


COURSE = "/tmp/course-grade-1x_c4/course/course_utils"


@pytest.mark.parametrize(
    "reason, told",
    [
        ("your code failed in a worker:\nno end after 8 s, so all workers were stopped\n\nrank 0 was at <exercise 1.2>",
         "your code did not end within 8 s:\nrank 0 was at <exercise 1.2>"),
        ("your code failed in a worker:\nno end after 20 s, not counting 31 s in which other programs used the cores, "
         "so all workers were stopped",
         "your code did not end within 20 s"),
        (f'rank 0: X\n\nTraceback of rank 0 (most recent call last):\n  File "{COURSE}/checks/judge.py", line 64, in f'
         "\n    raise X\n    ~~^^\n", "rank 0: X"),
        (f'T\nTraceback of rank 1 (most recent call last):\n  File "<exercise 1.2>", line 3, in f\n    g()\n'
         f'  File "{COURSE}/chapters/c01/a.py", line 6, in g\n    raise X\n  File "{COURSE}/models.py", line 1, in h\n'
         "    hers\nX: no file '/tmp/course-grade-1x_c4/home/a'",
         'T\nTraceback of rank 1 (most recent call last):\n  File "<exercise 1.2>", line 3, in f\n    g()\n'
         '  File "course_utils/models.py", line 1, in h\n    hers\nX: no file \'home/a\''),
        ("2 of 3\nare wrong", "2 of 3\nare wrong"),
    ],
)  # fmt: skip
def test_a_reason_has_nothing_of_the_markers_own(reason, told):
    assert for_student(reason) == told


@pytest.mark.parametrize(
    "said, state",
    [
        ("a worker:\nno end after 8 s, so all workers were stopped\n\nrank 0 was in _path_stat", "fault"),
        ("a worker:\nno end after 8 s, so all workers were stopped\n\nrank 0 was running (it did not say where)",
         "fault"),
        ("a worker:\nno end after 8 s, so all workers were stopped\n\nrank 0 was at <exercise 1.2>, line 3", "endless"),
        ("a worker:\nno end after 8 s, not counting 3 s in which other programs used the cores, so all workers were "
         "stopped\n\nrank 0 had returned\nrank 1 was in all_reduce at <cell 4>, line 3:  all_reduce(x)", "endless"),
        ("a worker:\nno end after 8 s, so all workers were stopped\n\nrank 0 had returned\n"
         "rank 1 had reached the end of your function", "endless"),
        ("the simulator:\nno end after 8 s, so the kernel was stopped in thread (0): does its loop come to an end?",
         "endless"),
        ("a worker:\nrank 0: ValueError: no end after 8 s, so all workers were stopped", None),
    ],
)  # fmt: skip
def test_of_what_has_no_end_only_what_was_in_the_answer_is_the_answers(said, state):
    assert of_a_limit(f"your code failed in {said}") == state


def test_the_screen_keeps_the_lines_of_a_reason():
    long = "word " * 100
    shown = report.reasons(
        {"anna": [*MARKED["anna"], Verdict("1.4", "wrong", f"{long}\n  indented {long}")]}
    ).splitlines()
    assert shown[:5] == [
        "anna  1.2  wrong: your code failed in a worker:",
        "    rank 0: ValueError: a",
        "    Traceback of rank 0:",
        "      File",
        "        raise\\x1b[2J",
    ]
    assert max(map(len, shown)) <= report.WIDTH and "      indented word" in report.reasons(
        {"a": [Verdict("1.4", "wrong", f"b\n  indented {long}")]}
    )
    many = report.reasons({"a": [Verdict("1.4", "wrong", "line\n" * 1000)]}).splitlines()
    assert len(many) == 21 and many[-1].strip() == "…"


def test_what_was_not_judged_is_named():
    assert report.not_judged(MARKED) == ["anna (1.4)", "=cmd()", "bert"]


def test_submissions_are_in_the_order_of_their_names_and_a_lost_suffix_loses_nothing(tmp_path):
    for name in ("Zoe.ipynb", "anna.IPYNB", "Bert.ipynb.txt", "carl.ipynb.json", "notes.txt", "data.json", "d.ipynb~"):
        (tmp_path / name).write_text("{}")
    found = [(name, bool(why)) for name, _, why in inbox.find([tmp_path])]
    assert found == [
        ("anna", False),
        ("Bert.ipynb.txt", False),
        ("carl.ipynb.json", False),
        ("d.ipynb~", True),
        ("data.json", True),
        ("notes.txt", True),
        ("Zoe", False),
    ]


def test_a_hidden_notebook_has_a_name_unless_a_system_made_it(tmp_path):
    made = ("._a.ipynb", ".DS_Store", ".ipynb_checkpoints/a-checkpoint.ipynb", "__MACOSX/._a.ipynb", "__MACOSX/a.ipynb")
    handed_in = (".ipynb", ".b.ipynb", ".work/c.ipynb")
    for name in ("a.ipynb", *made, *handed_in):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    found = inbox.find([tmp_path])
    assert sorted(name for name, _, why in found if name and "begins with a dot" in why) == [".b", ".ipynb", ".work/c"]
    assert {path.relative_to(tmp_path).as_posix() for name, path, _ in found if not name} == {*made}
    assert [name for name, _, why in inbox.find([tmp_path / ".b.ipynb"]) if not why] == [".b"]


@pytest.mark.parametrize(
    "named, names",
    [
        (["inbox"], ["uma/00_start_here", "vera/00_start_here", "vera/01_devices (1)"]),
        (["inbox/uma", "inbox/vera"], ["uma/00_start_here", "vera/00_start_here", "vera/01_devices (1)"]),
        (["inbox/uma/00_start_here.ipynb"], ["00_start_here"]),
        (["inbox/uma", "inbox/anna"], ["anna", "00_start_here"]),
        (["inbox/uma/00_start_here.ipynb", "inbox/vera/01_devices (1).ipynb"], ["00_start_here", "01_devices (1)"]),
    ],
)
def test_a_name_says_whose_a_notebook_is_and_no_more(named, names, tmp_path):
    for name in ("uma/00_start_here.ipynb", "vera/00_start_here.ipynb", "vera/01_devices (1).ipynb", "anna"):
        (tmp_path / "inbox" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "inbox" / name).write_text("{}")
    found = [name for name, _, why in inbox.find([tmp_path / each for each in named]) if not why]
    assert sorted(found) == sorted(names)


def test_a_file_that_is_no_notebook_is_told_in_a_sentence(tmp_path):
    whole = notebooks.notebook_paths(["01"])[0].read_bytes()
    contents = {
        b"": "is empty",
        b"\xef\xbb\xbf\n": "is empty",
        b"no": "is no notebook: its text is not JSON, as a notebook's is",
        b'{\n "cells": [': "is cut off or damaged: its text breaks in line 2",
        b'{"a": "\xff': "is cut off or damaged: its text breaks",
        whole[: len(whole) // 2]: "is cut off or damaged: its text breaks in line ",
        b"[]": "is no notebook: it is JSON, but not a notebook's",
        json.dumps({"a": 1}).encode(): "is no notebook: it is JSON, but not a notebook's",
    }
    for content, said in contents.items():
        (tmp_path / "a.ipynb").write_bytes(content)
        with pytest.raises(submissions.Unreadable) as refusal:
            submissions.read(tmp_path / "a.ipynb", submissions.chapters())
        told = str(refusal.value)
        assert told.startswith(said) and (told == said or told.removeprefix(said).isdecimal())
    (tmp_path / "a.ipynb.txt").write_bytes(whole)
    assert submissions.read(tmp_path / "a.ipynb.txt", submissions.chapters()).chapter.number == "01"
