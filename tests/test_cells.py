"""Tracebacks of a notebook's own lines, and modules that were edited."""

import traceback

import pytest
import torch

from course_utils import cells


def test_a_short_traceback_has_own_lines_only():
    def double(x):
        return torch.nn.Linear(2, 2)(x)

    with pytest.raises(RuntimeError) as caught:
        with cells.short_traceback():
            double(torch.ones(3))
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_a_short_traceback_has_own_lines_only", "double"]


def test_a_short_traceback_leaves_success_alone():
    with cells.short_traceback():
        x = 1
    assert x == 1


def test_a_line_below_a_timing_magic_is_the_students_own(notebook):
    notebook.run("%%time\ndef worker():\n    x = 1\n    raise ValueError('here')")
    outcome = notebook.fail("launch(worker, world_size=1)")
    assert outcome.message.startswith("rank 0: ValueError: here\n  at the code below %%time, line 3, in worker")
    outcome = notebook.fail("%time launch(lambda: 1 / 0, world_size=1)")
    assert "division by zero\n  at the code of %time, line 1, in <lambda>" in outcome.message


def test_a_module_that_autoreload_has_updated_is_no_old_one(notebook):
    path = notebook.directory / "edited_by_hand.py"
    path.write_text("number = 1\n")
    told = "has changed since it was imported here"
    notebook.run("import edited_by_hand\nlaunch(lambda: edited_by_hand.number, world_size=1)[0]")
    path.write_text("number = 22\n")
    assert told in notebook.run("launch(lambda: edited_by_hand.number, world_size=1)[0]").stdout
    notebook.run("%load_ext autoreload\n%autoreload 2\nimport importlib; importlib.reload(edited_by_hand)")
    notebook.run("launch(lambda: edited_by_hand.number, world_size=1)[0]")
    path.write_text("number = 333\n")
    outcome = notebook.run("launch(lambda: edited_by_hand.number, world_size=1)[0], edited_by_hand.number")
    assert outcome.value == (333, 333)
    assert told not in outcome.stdout
    notebook.run("%autoreload 0\ndel sys.modules['edited_by_hand']")
    path.unlink()
