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
    assert home == ([f"dk{rank}, dv{rank}\n+ own part" for rank in range(3)] if gradients else [])


def test_a_mask_has_a_row_for_each_query_in_its_ranks_colour(monkeypatch):
    order = {"odd and even": [torch.tensor([0, 2]), torch.tensor([1, 3])]}
    (axes,) = drawn(monkeypatch, lambda: figures.masks(order, "A mask."))
    rows = sorted((patch.get_y(), patch.get_width(), patch.get_facecolor()) for patch in axes.patches)
    assert [(y, width) for y, width, _ in rows] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert rows[0][2] == rows[2][2] != rows[1][2] == rows[3][2]
    assert [text.get_text() for text in axes.texts] == ["rank 0: 4 pairs", "rank 1: 6 pairs"]


def test_heads_for_tokens_says_where_each_part_goes_and_comes_from(monkeypatch):
    before, after = drawn(monkeypatch, lambda: figures.tokens_for_heads("Heads.", num_ranks=3))
    words = [[text.get_text() for text in axes.texts] for axes in (before, after)]  # token by token, head by head
    assert words[0] == ["stays", "to 1", "to 2", "to 0", "stays", "to 2", "to 0", "to 1", "stays"]
    assert words[1] == ["stays", "from 0", "from 0", "from 1", "stays", "from 1", "from 2", "from 2", "stays"]


def test_counted_points_and_computed_lines_share_a_colour(monkeypatch):
    curve = {"ring": ([2, 4], [3, 5])}
    panels = {"both": (curve, curve | {"other": ([2], [1])}), "points": (curve, {})}
    both, points = drawn(monkeypatch, lambda: figures.against_formula(panels, "N", "B", "C.", mark=(3, "here")))
    line, counted, other, mark = both.lines
    assert line.get_color() == counted.get_color() == points.lines[0].get_color() != other.get_color()
    assert (line.get_linestyle(), counted.get_linestyle(), points.lines[0].get_linestyle()) == ("-", "None", "-")
    assert list(mark.get_xdata()) == [3, 3]


def test_what_a_piece_adds_is_written_beside_it(monkeypatch):
    scores, steps = [0.0, 1.0, 0.0], [(1, 0.0, 1.0), (1, 1.0, 1.3679), (1, 1.0, 1.7358)]
    (axes,) = drawn(monkeypatch, lambda: figures.running_softmax(scores, steps, "A row."))
    first, grown, same = (text.get_text().splitlines()[1:] for text in axes.texts)
    assert first == ["sum 1.00"] and same == ["1.37 + 0.37 = 1.74"]
    assert grown == ["1.00 × e^(0 − 1) = 0.37", "0.37 + 1.00 = 1.37"]


def test_every_kind_of_number_has_a_bar_for_each_rank(monkeypatch):
    for kinds in (1, 3):
        bars = {name: {f"kind {i}": [0.5, 1.5] for i in range(kinds)} for name in ("contiguous", "zigzag")}
        (axes,) = drawn(monkeypatch, lambda bars=bars: figures.shares(bars, "×", "W.", source="x"))
        assert [patch.get_height() for patch in axes.patches] == [0.5, 1.5] * 2 * kinds


def test_losses_begin_at_the_first_step_that_is_asked_and_are_means(monkeypatch):
    draw = {"xlabel": "step", "ylabel": "loss", "alt": "L.", "source": "x", "mean_of": 2, "first": 3}
    (axes,) = drawn(monkeypatch, lambda: figures.learning({"right": [4, 2, 1, 3]}, ("a table", 2.5), **draw))
    curve, level = axes.lines
    assert (list(curve.get_xdata()), list(curve.get_ydata())) == ([3, 4], [1.5, 2])
    assert set(level.get_ydata()) == {2.5}


def test_they_are_drawn(capsys):
    figures.ring("A ring.")
    figures.running_softmax([1.0, 2.0, 0.5], [(2, 2.0, 1.4), (1, 2.0, 1.6)], "A row.")
    figures.shares({"a": {"seen": [1, 1]}}, "times", "Work.", prediction={1: 1.5}, source="counted")
    plans.memory_plans("Four plans.")
    assert capsys.readouterr().out.count("Figure: ") == 4
