"""`python -m tools.answers`: labelled answers, read, edited, and judged as cells of their chapter."""

import subprocess
import sys

import pytest

from tools import answers, notebooks

RIGHT = """
# %% right (asks)
def whoami():
    rank = dist.get_rank()
    return rank, dist.get_world_size()
"""


def written(folder, text):
    path = folder / "answers.py"
    path.write_text(text)
    return path


def test_edits_are_of_the_last_whole_answer_above(tmp_path):
    found = answers.read(written(tmp_path, """
# %%
import os
# %% wrong (of the solution): some words
# first → second
# %% right (whole)
def f(x):
    y = x
    return y
# %% wrong (replaces and removes): y = x + 1
# return y → return y + 1
# -     y = x
# +     x = 2 * x
# +     y = x
# %% endless
# -     y = x
# +
""".lstrip()), solution="first line")  # fmt: skip
    labels = [(answer.label, answer.name, answer.words) for answer in found]
    assert labels == [
        ("wrong", "of the solution", "some words"),
        ("right", "whole", ""),
        ("wrong", "replaces and removes", "y = x + 1"),
        ("endless", "line 14", ""),
    ]
    sources = [answer.source.removeprefix("import os\n\n\n") for answer in found]
    assert sources == [
        "second line\n",
        "def f(x):\n    y = x\n    return y\n",
        "def f(x):\n    x = 2 * x\n    y = x\n    return y + 1\n",
        "def f(x):\n\n    return y\n",
    ]


@pytest.mark.parametrize("edit, times", [("# z → y", 0), ("# x → z", 3), ("# - y = x\n# + y = 2", 0), ("# + y = 2", 4)])
def test_an_edit_that_fits_no_place_or_two_is_refused_with_its_line(tmp_path, edit, times):
    path = written(tmp_path, f"# %% right\ndef f(x):\n    y = x\n    return x\n# %% wrong\n{edit}\n")
    with pytest.raises(ValueError, match=f"line 5: .* stands {times} times in the answer above"):
        answers.read(path)


def test_a_file_without_answers_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no cell that begins with"):
        answers.read(written(tmp_path, "print()\n"))


def test_an_answer_runs_with_what_its_chapter_defines():
    path = answers.chapter_of("9.1")
    source = "def average_gradients_unequal(model, num_samples):\n    return DigitsNet, average_gradients, F.relu\n"
    before = sys.modules["__main__"]
    with answers.cell(source, "9.1", path) as function:
        assert function.__module__ == "__main__"
        assert sys.modules["__main__"].average_gradients_unequal is function
        assert [each.__name__ for each in function(None, 1)] == ["DigitsNet", "average_gradients", "relu"]
    assert sys.modules["__main__"] is before


@pytest.mark.parametrize(
    "text, status, said",
    [
        (
            RIGHT + "# %% wrong (counts on): ranks count from 0\n# return rank → return rank + 1\n",
            0,
            "0.1: 2 answers, 0 judged wrongly",
        ),
        (RIGHT + "# %% wrong (is right)\n# return rank, → return 0 + rank,\n", 1, "!!! wrong (is right), "),
        (RIGHT + "# %% wrong (for another reason): texts\n# return rank → return rank + 1\n", 1, "ranks count from 0"),
        (RIGHT + "# %% wrong\n# nothing → something\n", 1, "answers: answers.py, line 6: 'nothing' stands 0 times"),
    ],
)
def test_the_command_shows_what_was_judged_wrongly(text, status, said, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        answers.main(["0.1", str(written(tmp_path, text))])
    if status:
        assert ended.value.code
    else:
        assert not ended.value.code
    assert said in capsys.readouterr().out + str(ended.value.code)


def test_the_command_knows_its_exercises():
    command = [sys.executable, "-m", "tools.answers", "9.99"]
    ended = subprocess.run(command, cwd=notebooks.ROOT, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 1 and "no chapter has an exercise 9.99" in ended.stderr
