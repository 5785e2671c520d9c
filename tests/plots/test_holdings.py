"""What ranks hold: a small drawing gets a small canvas, on which its legend fits."""

import sys

import matplotlib.pyplot as plt
import pytest

from course_utils import plots

MANY = [[1, 2, 3, 4], [10, 20, 30, 40], [100, 200, 300, 400], [1000, 2000, 3000, 4000]]


@pytest.mark.parametrize(("states", "inches"), [([[[1], [10], [100], [1000]]], 2.8), ([MANY] * 7, 7.4)])
def test_the_canvas_is_as_wide_as_the_drawing_and_the_legend_fits(monkeypatch, states, inches):
    shown = []
    monkeypatch.setattr(sys.modules["course_utils.plots.holdings"], "show", lambda figure, alt: shown.append(figure))
    plots.holdings(states, alt="states")
    (figure,) = shown
    assert figure.get_size_inches()[0] == pytest.approx(inches, abs=0.05)
    figure.canvas.draw()
    legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= 0 and legend.x1 <= figure.bbox.x1
    plt.close(figure)
