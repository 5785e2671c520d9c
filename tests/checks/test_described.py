"""How messages of checks describe what came back."""

import functools

import pytest
import torch

from course_utils.checks.described import not_a, short


class Odd:
    def __repr__(self):
        raise ValueError


def train():
    pass


@pytest.mark.parametrize(
    "value, said",
    [
        (None, "None"),
        ([1, 2, 3], "[1, 2, 3]"),
        (torch.zeros(2, 3), "a tensor of shape (2, 3)"),
        (torch.tensor(2.5), "tensor(2.5)"),
        (train, "the function train"),
        ((train, print, [].append), "(the function train, the function print, the function append)"),
        (object(), "<object object>"),
        ({"f": Odd()}, "{'f': an instance of Odd}"),
    ],
)
def test_a_value_in_few_words(value, said):
    assert short(value) == said


def test_no_description_has_an_address():
    for value in (train, Odd.__repr__, Odd().__repr__, lambda: 1, functools.partial(train), iter([]), [object()] * 9):
        assert "0x" not in short(value)


def test_a_function_is_to_be_called():
    assert not_a(train, "a number") == "the function train, not a number: call it, with ()"
    assert not_a("2", "a number") == "'2', not a number"
