"""Diagrams: an arrow may have a width."""

import sys

import matplotlib.pyplot as plt

from course_utils import plots


def test_an_arrow_of_a_diagram_may_have_a_width(monkeypatch):
    shown = []
    monkeypatch.setattr(sys.modules["course_utils.plots.drawings"], "show", lambda figure, alt: shown.append(figure))
    boxes = {"a": (0, 0, "a"), "b": (1, 0, "b"), "c": (1, 1, "c")}
    plots.diagram(boxes, [("a", "b", "thin"), ("b", "c", "<->wide", 5)], alt="two arrows")
    widths = [text.arrow_patch.get_linewidth() for text in shown[0].axes[0].texts if getattr(text, "arrow_patch", None)]
    assert widths == [1.2, 5]
    plt.close(shown[0])
