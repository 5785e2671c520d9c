"""Tracebacks of a notebook's own lines."""

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
