"""Chapter 01's figures: where tensors are, and which of them were copied."""

import matplotlib.pyplot as plt

from course_utils.chapters.c01_devices import figures


def test_places_draws_boxes_and_copies(monkeypatch):
    shown = []
    monkeypatch.setattr(figures, "show", lambda figure, alt: shown.append(figure))
    figures.places([("x = 1", "x", ""), ("x.to(gpu)", "x", "(no name)")], alt="where")
    texts = {text.get_text(): text for text in shown[0].axes[0].texts}
    assert {"x = 1", "x.to(gpu)", "x", "(no name)", "host memory", "GPU memory"} <= texts.keys()
    assert texts["(no name)"].get_bbox_patch().get_linestyle() == "--"
    arrows = [text for text in shown[0].axes[0].texts if getattr(text, "arrow_patch", None)]
    assert len(arrows) == 1
    plt.close(shown[0])
