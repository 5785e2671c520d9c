"""Chapter 11's figures: every run a point, and paths of gradient descent that are computed."""

import math

import pytest

from course_utils.chapters.c11_large_batches import figures

RUNS = {64: {"fixed": [2.0, 3.0, 10.0], "linear": [1.0, 0.278, 0.0]}, 512: {"fixed": [90.0, 40.0, 80.0]}}


def test_every_run_is_a_point_and_every_case_has_its_median(shown):
    figures.outcomes(RUNS, "batch size", "Two sizes.", prediction=[512], source="made up")
    (axes,) = shown[0].axes
    points = [line for line in axes.lines if line.get_linestyle() == "None" and line.get_marker() not in "v*"]
    # the legend's lines are empty, and a run without any error is not among the points
    assert [sorted(line.get_ydata()) for line in points if len(line.get_xdata())] == [
        [2, 3, 10],
        [0.278, 1],
        [40, 80, 90],
    ]
    bars = [line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_linestyle() == "-"]
    assert [tuple(line.get_ydata()) for line in bars] == [(3, 3), (0.278, 0.278), (80, 80)]
    low, high = axes.get_ylim()
    assert low < 0.278 and high > 90
    (star,) = [line for line in axes.lines if line.get_marker() == "*"]
    assert list(star.get_xdata()) == [1]


def test_a_run_without_any_error_stands_at_the_edge_with_its_number(shown):
    figures.outcomes(RUNS, "batch size", "Two sizes.", source="made up")
    (axes,) = shown[0].axes
    (edge,) = [line for line in axes.lines if line.get_marker() == "v"]
    assert axes.get_ylim()[0] < edge.get_ydata()[0] < 0.278, "0 is not on a log axis, and 0.278 is"
    (label,) = [text for text in axes.texts if text.get_text() != "guessing"]
    assert label.get_text() == "0" and label.xy == (edge.get_xdata()[0], edge.get_ydata()[0])


def test_without_a_prediction_the_line_below_says_so(shown, capsys):
    figures.outcomes(RUNS, "batch size", "Two sizes.", prediction=[None], source="made up")
    assert not [line for line in shown[0].axes[0].lines if line.get_marker() == "*"]
    assert "(No prediction was made.)" in capsys.readouterr().out
    figures.outcomes(RUNS, "batch size", "Two sizes.", source="made up")  # nothing was asked
    assert "prediction" not in capsys.readouterr().out


def test_the_large_step_replaces_the_small_ones_only_where_the_gradient_changes_little():
    distances = []
    for a, b in figures.VALLEYS.values():
        small = figures.descend(a, b, figures.SMALL_RATE, figures.NOISE)
        large = figures.descend(a, b, figures.NUM_STEPS * figures.SMALL_RATE)
        assert len(small) == figures.NUM_STEPS + 1 and len(large) == 2
        distances.append(math.dist(small[-1], large[-1]))
    assert distances[0] < 0.2 < 0.8 < distances[1]
    # the mean of the batches has none
    assert [sum(parts) for parts in zip(*figures.NOISE)] == pytest.approx([0, 0])
