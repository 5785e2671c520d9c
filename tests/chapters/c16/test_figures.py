"""The plans and drawings of chapter 16."""

import matplotlib
import pytest
import torch

from course_utils.chapters.c16_long_sequences import figures, plans
from course_utils.chapters.c16_long_sequences.plans import PLANS, plan

matplotlib.use("agg")


@pytest.mark.parametrize(
    "name, peak, time", [(PLANS[0], 4, 12), (PLANS[1], 2.5, 13), (PLANS[2], 1.75, 16), (PLANS[3], 4, 16)]
)
def test_what_a_plan_holds_and_takes(name, peak, time):
    spans, curve = plan(name, 4)
    assert max(held for _, held in curve) == peak
    assert spans[-1][2] == time and curve[-1] == (time, 0)


def drawn(monkeypatch, draw):
    """The axes of the figure that `draw()` shows."""
    import matplotlib.pyplot as plt

    found = []
    monkeypatch.setattr(figures, "show", lambda figure, alt: (found.extend(figure.axes), plt.close(figure)))
    draw()
    return found


@pytest.mark.parametrize("gradients", [False, True])
def test_every_rank_meets_every_piece_which_comes_from_the_rank_before(monkeypatch, gradients):
    (axes,) = drawn(monkeypatch, lambda: figures.ring("A ring.", num_ranks=3, gradients=gradients))
    boxes = [text.get_text().replace("$", "").replace("_", "") for text in axes.texts if text.get_text()]
    steps = [box for box in boxes if box.startswith("k")]
    for rank in range(3):
        assert [box[:2] for box in steps[3 * rank : 3 * rank + 3]] == [f"k{(rank - step) % 3}" for step in range(3)]
    home = [box for box in boxes if box.startswith("d")]
    assert home == (["dk0, dv0", "dk1, dv1", "dk2, dv2"] if gradients else [])


def test_a_mask_has_a_row_for_each_query_in_its_ranks_colour(monkeypatch):
    order = {"odd and even": [torch.tensor([0, 2]), torch.tensor([1, 3])]}
    (axes,) = drawn(monkeypatch, lambda: figures.masks(order, "A mask."))
    rows = sorted((patch.get_y(), patch.get_width(), patch.get_facecolor()) for patch in axes.patches)
    assert [(y, width) for y, width, _ in rows] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert rows[0][2] == rows[2][2] != rows[1][2] == rows[3][2]


def test_heads_for_tokens_sends_all_but_what_stays(monkeypatch):
    before, after = drawn(monkeypatch, lambda: figures.tokens_for_heads("Heads.", num_ranks=3))
    assert sum("→" in text.get_text() for text in before.texts) == 6
    assert [text.get_text() for text in after.texts] == 3 * ["rank 0", "rank 1", "rank 2"]


def test_counted_points_and_computed_lines_share_a_colour(monkeypatch):
    curve = {"ring": ([2, 4], [3, 5])}
    (axes,) = drawn(monkeypatch, lambda: figures.against_formula(curve, curve | {"other": ([2], [1])}, "N", "B", "C."))
    line, points, other = axes.lines
    assert line.get_color() == points.get_color() != other.get_color()
    assert (line.get_linestyle(), points.get_linestyle()) == ("-", "None")


def test_without_a_clock_only_what_was_counted_is_drawn(monkeypatch):
    counted = {"contiguous": [0.5, 1.5], "zigzag": [1, 1]}
    for measured, bars in (({}, 4), ({name: [1, 1] for name in counted}, 8)):
        (axes,) = drawn(monkeypatch, lambda measured=measured: figures.shares(counted, measured, "×", "W.", source="x"))
        assert len(axes.patches) == bars


def test_they_are_drawn(capsys):
    figures.ring("A ring.")
    figures.running_softmax([1.0, 2.0, 0.5], [(2, 2.0, 1.4), (1, 2.0, 1.6)], "A row.")
    figures.shares({"a": [1, 1]}, {"a": [1, 1]}, "times", "Work.", prediction={1: 1.5}, source="counted")
    plans.memory_plans("Four plans.")
    assert capsys.readouterr().out.count("Figure: ") == 4
