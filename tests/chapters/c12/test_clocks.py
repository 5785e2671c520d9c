"""Clocks of two ranks, compared."""

from course_utils import launch
from course_utils.chapters.c12_pipelines import clocks


def test_clocks_are_compared_within_the_error():
    for fast_by_s in (0.0, -7.5):
        (ahead_s, error_s), nothing = launch(clocks.compare, fast_by_s, world_size=2)
        assert nothing is None
        assert abs(ahead_s - fast_by_s) <= error_s < 1
