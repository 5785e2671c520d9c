"""Every exercise's check, held against answers: solutions, other right ones, stubs, and many that are wrong.

`wrong_answers/ex_9_1.py` holds what exercise 9.1's check must refuse, each with words of the reason it must give, and
right answers written in another way. The answers run in real workers, as they do in a notebook.
"""

import ast
import functools
import os
import runpy
import signal
import time
from pathlib import Path

import pytest
import torch

from course_utils.checks import CheckFailed, Result, check, evaluate, wrong
from course_utils.launch import LauncherError
from tools import notebooks

FOLDER = Path(__file__).parent / "wrong_answers"
CHAPTERS = {
    number: path for path in notebooks.notebook_paths() for number in notebooks.exercises(notebooks.read(path))
}


def file_of(exercise):
    return FOLDER / f"ex_{exercise.replace('.', '_')}.py"


@functools.cache
def load(path):
    # Not imported: a function of a module that a worker cannot import travels by value, as a notebook's does.
    return runpy.run_path(str(path))


def answers(kind):
    found = []
    for path in sorted(FOLDER.glob("ex_*.py")):
        exercise = path.stem.removeprefix("ex_").replace("_", ".")
        for answer in load(path).get(kind, ()):
            answer, words = answer if isinstance(answer, tuple) else (answer, None)
            name = getattr(answer, "__name__", words)
            given = (exercise, answer) if words is None else (exercise, answer, words)
            found.append(pytest.param(*given, id=f"{exercise}-{name}"))
    return found


def definitions(source):
    """The imports, functions and classes of a source text, without what else it does."""
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    return ast.Module([node for node in ast.parse(source).body if isinstance(node, kept)], type_ignores=[])


@functools.cache
def chapter(path, is_solved):
    """What a chapter's cells define, with its stubs or with its solutions: {"9.1": the function in that cell}."""
    nb = notebooks.read(path)
    if is_solved:
        notebooks.put_in(nb, notebooks.read_solutions(path))
    names = {"__name__": "chapter"}
    for cell in nb.cells:
        if cell.cell_type == "code":
            exec(compile(definitions(cell.source), path.stem, "exec"), names)
    stubs = {number: definitions(nb.cells[i].source).body for number, i in notebooks.exercises(nb).items()}
    return {number: names[body[-1].name] for number, body in stubs.items()}


@functools.cache
def solution_lines(exercise):
    source = notebooks.read_solutions(CHAPTERS[exercise])[exercise]
    lines = (line.partition("#")[0].strip() for line in source.splitlines())
    return {line for line in lines if len(line) > 12}


def write(folder, source):
    """The function that `source` ends with, from a file of its own."""
    path = folder / "cell.py"
    path.write_text(source)
    return list(runpy.run_path(str(path)).values())[-1]


# ---- wrong, right, open


@pytest.mark.parametrize("exercise, answer, words", answers("WRONG"))
def test_a_wrong_answer_is_refused_with_its_reason(exercise, answer, words):
    result = evaluate(exercise, answer)
    assert result.state == "wrong", result
    assert words in result.reason
    own_lines = file_of(exercise).read_text()
    given_away = [line for line in solution_lines(exercise) if line in result.reason and line not in own_lines]
    assert not given_away, f"the reason quotes the solution: {given_away}"


@pytest.mark.parametrize("exercise, answer, words", answers("ENDLESS"))
def test_an_answer_without_end_is_stopped(exercise, answer, words, monkeypatch):
    monkeypatch.setattr(wrong, "TIME_LIMIT_S", 2)
    result = evaluate(exercise, answer)
    assert result.state == "wrong", result
    assert "no end after 2 s" in result.reason
    assert words in result.reason
    assert "timeout" not in result.reason, "a student cannot give a check more time"


@pytest.mark.parametrize("exercise, answer", answers("RIGHT"))
def test_a_right_answer_passes(exercise, answer):
    result = evaluate(exercise, answer)
    assert result.state == "passed", result


@pytest.mark.parametrize("exercise", CHAPTERS)
def test_the_solution_passes(exercise):
    result = evaluate(exercise, chapter(CHAPTERS[exercise], is_solved=True)[exercise])
    assert result.state == "passed", result


@pytest.mark.parametrize("exercise", CHAPTERS)
def test_the_stub_is_not_attempted(exercise):
    result = evaluate(exercise, chapter(CHAPTERS[exercise], is_solved=False)[exercise])
    assert result.state == "open", result
    assert "not attempted" in result.reason


@pytest.mark.parametrize("exercise", CHAPTERS)
def test_every_exercise_has_wrong_and_right_answers(exercise):
    names = load(file_of(exercise))
    assert len({getattr(answer, "func", answer) for answer, _ in names["WRONG"]}) >= 4 or len(names["WRONG"]) >= 8
    assert all(len(words) >= 6 for _, words in names["WRONG"])
    assert names["RIGHT"]


def test_every_file_belongs_to_an_exercise():
    assert {path.name for path in FOLDER.glob("*.py")} == {file_of(exercise).name for exercise in CHAPTERS}


# ---- what check() makes of it


def test_strict_mode_raises_for_wrong_and_open_answers_only(monkeypatch):
    names, stub = load(file_of("9.3")), chapter(CHAPTERS["9.3"], is_solved=False)["9.3"]
    refused = [(names["WRONG"][0][0], "✗ Exercise 9.3: "), (stub, "○ Exercise 9.3: not attempted")]
    monkeypatch.delenv("COURSE_STRICT", raising=False)
    for answer, words in refused:
        assert repr(check("9.3", answer)).startswith(words)
    monkeypatch.setenv("COURSE_STRICT", "1")
    for answer, words in refused:
        with pytest.raises(CheckFailed, match=words):
            check("9.3", answer)
    assert repr(check("9.3", names["RIGHT"][0])).startswith("✓ Exercise 9.3: ")


@pytest.mark.parametrize("exercise", ["9.7", "9.0", "99.1", "9", "nine", "", "9.2.1", "-9.1", None])
def test_an_unknown_exercise_is_named(exercise):
    with pytest.raises(ValueError, match="there is no exercise .*; write check"):
        check(exercise, len)


def test_an_exercise_may_be_given_as_a_number():
    assert check(9.3, load(file_of("9.3"))["RIGHT"][0]).state == "passed"


def test_an_answer_that_raises_names_its_own_line(tmp_path):
    answer = write(tmp_path, "import torch\n\ndef find(model):\n    odd = {}\n    return odd['<rank>']\n")
    result = evaluate("9.2", answer)
    assert result.state == "wrong"
    assert "KeyError: '<rank>'" in result.reason
    assert "cell.py, line 5, in find:  return odd['<rank>']" in result.reason.splitlines()[2]
    assert "<rank>" not in result._repr_html_()
    assert "&lt;rank&gt;" in result._repr_html_()


def test_torchs_own_not_implemented_error_is_no_stub(tmp_path):
    source = "from torch import nn\n\ndef find(model):\n    return nn.Module()(model)  # has no forward()\n"
    result = evaluate("9.2", write(tmp_path, source))
    assert result.state == "wrong"
    assert "NotImplementedError: " in result.reason


def test_a_result_instead_of_the_function_is_refused():
    for exercise in CHAPTERS:
        result = evaluate(exercise, [[1, 0]])
        assert result.state == "wrong"
        assert "[[1, 0]]: give it your function's name, without calling it" in result.reason


def test_an_answer_that_cannot_travel_is_refused(tmp_path):
    source = "import threading\n\nlock = threading.Lock()\n\ndef buckets(num_bytes, cap_bytes):\n    return lock\n"
    result = evaluate("9.3", write(tmp_path, source))
    assert result.state == "wrong"
    assert "uses something that cannot be sent to the worker that tries it (cannot pickle" in result.reason


def test_what_is_not_a_number_is_infinitely_far_from_any():
    assert wrong.max_difference([torch.ones(2), torch.tensor([0.5, torch.nan])], [torch.ones(2)] * 2) == torch.inf


def test_html_is_escaped_and_shows_the_sign():
    shown = Result("9.2", "wrong", "rank 0 returned <b>2</b> & stopped")._repr_html_()
    assert "✗ Exercise 9.2: rank 0 returned &lt;b&gt;2&lt;/b&gt; &amp; stopped" in shown


def test_a_fault_of_the_launchers_is_no_wrong_answer():
    def answer(*args, **kwargs):
        os.kill(os.getppid(), signal.SIGKILL)  # the process that starts workers
        time.sleep(60)

    with pytest.raises(LauncherError, match="the process that starts workers has ended"):
        evaluate("9.1", answer)
