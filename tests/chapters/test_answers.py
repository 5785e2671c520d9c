"""Every exercise's check, held against answers: right ones other than the solution, and many that are wrong.

`c09/ex_9_1.py` holds what exercise 9.1's check must refuse, each with words of the reason it must give, and
right answers written in another way, as `tools.answers` reads them. They run in real workers, as they do in a notebook.
Solutions and stubs are judged where the chapters run with them, in `tools.solved`.
"""

import functools
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from course_utils.checks import CheckFailed, Result, check, evaluate, expect, judge, of_chapter
from course_utils.checks.expect import Wrong
from course_utils.checks.watch.calls import forbid
from course_utils.launch import LauncherError
from tests.helpers import reasons
from tools import answers, notebooks

ENDLESS_S = 2
CHAPTERS = {number: path for path in notebooks.notebook_paths() for number in notebooks.exercises(notebooks.read(path))}


@functools.cache
def solution(exercise):
    return notebooks.read_solutions(CHAPTERS[exercise])[exercise]


@functools.cache
def read(exercise):
    return answers.read(answers.file_of(exercise), solution(exercise))


@pytest.fixture(scope="module", autouse=True)
def _warm():
    answers.wait_until_warm()


def find(exercise, source):
    """What the exercise's check finds about an answer of this source."""
    result, _ = answers.judge(answers.Answer("right", "cell", "", source), exercise, CHAPTERS[exercise])
    return result


def first(exercise, label):
    return next(answer.source for answer in read(exercise) if answer.label == label)


def lines_given_away(exercise, answer, reason):
    """Lines of the solution that the reason quotes and the answer does not hold."""
    lines = (line.partition("#")[0].strip() for line in solution(exercise).splitlines())
    return [line for line in lines if len(line) > 13 and line in reason and line not in answer.source]


# ---- wrong, right, open


def complaints(answer, exercise, result):
    """What is wrong with the verdict on a labelled answer."""
    if result.state != answers.STATES[answer.label]:
        yield f"is judged {result.state!r}"
    if answer.label != "right":
        if answer.words not in result.reason:
            yield f"is not said to be wrong because of {answer.words!r}"
        if given := lines_given_away(exercise, answer, result.reason):
            yield f"the reason quotes the solution: {given}"
    if answer.label == "endless":
        if f"no end after {ENDLESS_S} s" not in result.reason:
            yield "is not said to be endless"
        if "timeout" in result.reason:
            yield "hears of a timeout, and a student cannot give a check more time"


# One after another in one process, whose workers start at once; a test for each of a thousand answers says no more.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("chapter", sorted(set(CHAPTERS.values())), ids=lambda path: path.stem[:2])
def test_answers_are_judged_as_they_should_be_and_every_reason_is_given_to_one(chapter, monkeypatch):
    problems, reasons_given = [], []
    for exercise in (number for number, path in CHAPTERS.items() if path == chapter):
        for answer in read(exercise):
            with monkeypatch.context() as patch:
                if answer.label == "endless":
                    patch.setattr(judge, "DEADLINE_S", ENDLESS_S)
                result, _ = answers.judge(answer, exercise, chapter)
            reasons_given.append(result.reason)
            problems += [f"{exercise}, {answer}: {each}\n{result}" for each in complaints(answer, exercise, result)]
    assert not problems, "\n\n".join(problems)
    said = reasons.sentences(Path(of_chapter(int(chapter.stem[:2])).__file__))
    unsaid = [
        f"line {line}: {pattern.pattern}"
        for line, pattern in said.items()
        if not any(map(pattern.search, reasons_given))
    ]
    assert not unsaid, "no answer is told this:\n" + "\n".join(unsaid)


@pytest.mark.parametrize("exercise", CHAPTERS)
def test_every_exercise_has_wrong_and_right_answers(exercise):
    found = read(exercise)
    assert len({answer.source for answer in found if answer.label == "wrong"}) >= 4
    assert all(len(answer.words) >= 6 for answer in found if answer.label != "right")
    assert any(answer.label == "right" for answer in found)


def test_every_file_belongs_to_an_exercise():
    assert {path.name for path in answers.FOLDER.glob("*/ex_*.py")} == {
        answers.file_of(exercise).name for exercise in CHAPTERS
    }


# ---- what check() makes of it


def test_strict_mode_raises_for_wrong_and_open_answers_only(monkeypatch):
    nb = notebooks.read(CHAPTERS["9.3"])
    stub, _ = notebooks.answer_and_check(nb.cells[notebooks.exercises(nb)["9.3"]].source)
    for source, words in (
        (first("9.3", "wrong"), "✗ Exercise 9.3: "),
        (stub, "○ Exercise 9.3: not attempted"),
        (first("9.3", "right"), "✓ Exercise 9.3: "),
    ):
        with answers.cell(source, "9.3", CHAPTERS["9.3"]) as answer:
            monkeypatch.delenv("COURSE_STRICT", raising=False)
            assert repr(check("9.3", answer)).startswith(words)
            monkeypatch.setenv("COURSE_STRICT", "1")
            if words[0] == "✓":
                assert repr(check("9.3", answer)).startswith(words)
                continue
            with pytest.raises(CheckFailed, match=words):
                check("9.3", answer)


@pytest.mark.parametrize("exercise", ["9.7", "9.0", "99.1", "9", "nine", "", "9.2.1", "-9.1", None])
def test_an_unknown_exercise_is_named(exercise):
    with pytest.raises(ValueError, match="there is no exercise .*; write check"):
        check(exercise, len)


def test_an_exercise_may_be_given_as_a_number():
    with answers.cell(first("9.3", "right"), "9.3", CHAPTERS["9.3"]) as answer:
        assert check(9.3, answer).state == "passed"


def test_an_answer_that_raises_names_its_own_line():
    result = find("9.2", "import torch\n\ndef find_odd_rank(model):\n    odd = {}\n    return odd['<rank>']\n")
    assert result.state == "wrong"
    assert "KeyError: '<rank>'" in result.reason
    assert "line 5, in find_odd_rank:  return odd['<rank>']" in result.reason.splitlines()[2]
    assert "<rank>" not in result._repr_html_()
    assert "&lt;rank&gt;" in result._repr_html_()


def test_torchs_own_not_implemented_error_is_no_stub():
    source = "from torch import nn\n\ndef find_odd_rank(model):\n    return nn.Module()(model)  # has no forward()\n"
    result = find("9.2", source)
    assert result.state == "wrong"
    assert "NotImplementedError: " in result.reason


def test_a_result_instead_of_the_function_is_refused():
    for exercise in CHAPTERS:
        result = evaluate(exercise, [[1, 0]])
        assert result.state == "wrong"
        assert "[[1, 0]]: give it your function's name, without calling it" in result.reason


def test_an_answer_that_cannot_travel_is_refused():
    result = find(
        "9.3",
        "import threading\n\nlock = threading.Lock()\n\ndef make_buckets(num_bytes, cap_bytes):\n    return lock\n",
    )
    assert result.state == "wrong"
    assert "uses something that cannot be sent to the worker that tries it (cannot pickle" in result.reason


def test_what_is_not_a_number_is_infinitely_far_from_any():
    assert expect.max_difference([torch.ones(2), torch.tensor([0.5, torch.nan])], [torch.ones(2)] * 2) == torch.inf


def test_html_is_escaped_and_shows_the_sign():
    shown = Result("9.2", "wrong", "rank 0 returned <b>2</b> & stopped")._repr_html_()
    assert "✗ Exercise 9.2: rank 0 returned &lt;b&gt;2&lt;/b&gt; &amp; stopped" in shown


def test_a_fault_of_the_launchers_is_no_wrong_answer():
    def answer(*args, **kwargs):
        os.kill(os.getppid(), signal.SIGKILL)  # the process that starts workers
        time.sleep(60)

    with pytest.raises(LauncherError, match="the process that starts workers has ended"):
        evaluate("9.1", answer)


def test_what_is_forbidden_may_be_imported_and_not_called(tmp_path, monkeypatch):
    (tmp_path / "ready_made.py").write_text("def work():\n    return 1\n\n\nclass Made:\n    found = work()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with forbid("ready_made", instead="write it"):
        import ready_made  # the first time: the module's and its class's body are run, and what they call
    with (
        pytest.raises(Wrong, match="ready_made's work was called, and the task is to do without: write it"),
        forbid("ready_made", instead="write it"),
    ):
        ready_made.work()
