"""Chapter 19's figure: every measurement is a point, and none lies outside."""

import matplotlib
import pytest

from course_utils.chapters.c19_choosing import figures

matplotlib.use("agg")


def test_every_measurement_is_a_point_inside_the_axes(shown):
    errors = {"one": [0.02, -0.3], "another": [0.5]}
    figures.agreement(errors, "Points.", band=0.25, source="made up")
    (axes,) = shown[0].axes
    points = {line.get_ydata()[0]: list(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"}
    assert points == {0: pytest.approx([2, -30]), 1: pytest.approx([50])}
    left, right = axes.get_xlim()
    assert left < -30 and right > 50
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "another"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["within 25%", "one measurement"]
