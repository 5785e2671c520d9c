"""Chapter 10's figures: the schedule that is drawn, and that a watched step is drawn with its phases and its peak."""

import matplotlib
import pytest
import torch

from course_utils.chapters.c10_fully_sharded import figures
from course_utils.measure.alive import Step

matplotlib.use("agg")


def test_every_unit_is_gathered_twice_and_its_gradients_are_reduced_once_from_the_last_to_the_first():
    messages, computing, whole = figures.schedule(3)
    assert [unit for _, _, unit, what in messages if what == "gather"] == [0, 1, 2, 2, 1, 0]
    assert [unit for _, _, unit, what in messages if what != "gather"] == [2, 1, 0]
    assert [what for _, _, _, what in computing] == ["forward"] * 3 + ["backward"] * 3 + ["Adam"]
    for begin, end, unit, _ in computing[:-1]:  # a unit is whole while it computes
        assert any(unit == other and b <= begin and end <= e for b, e, other, what in whole if what == "parameters")


@pytest.mark.parametrize("num_units, num_ranks", [(3, 4), (2, 8)])
def test_a_step_begins_with_shards_of_parameters_and_ends_with_those_of_gradients_too(num_units, num_ranks):
    curve = [value for _, value in figures.held(num_units, num_ranks)]
    assert curve[0] == num_units / num_ranks + 1  # one unit is gathered at once
    assert curve[-1] == 2 * num_units / num_ranks
    assert max(curve) == (2 * num_units - 1) / num_ranks + 2  # the last unit backward: whole parameters and gradients


def test_all_drawings_are_shown_with_their_words(capsys, monkeypatch):
    shown = []
    monkeypatch.setattr(figures, "show", lambda figure, alt: shown.append((figure, alt)))
    figures.sharded_step("One step.")
    step = Step((4_000_000, 9_500_000, 2_000_000), {"forward": (0, 1), "backward": (1, 3)}, (8,), torch.device("cpu"))
    figures.memory_over_step({"a way": step, "another": step}, "Two ways.")
    assert [alt for _, alt in shown] == ["One step.", "Two ways."]
    texts = [[text.get_text() for text in axes.texts] for axes in shown[1][0].axes]
    assert texts == [["forward", "backward", "9.5"]] * 2
    sizes, mb = (1, 2), [3.0, 4.0]
    placement = [torch.device("cpu")]
    figures.peaks_over_units(sizes, {"by hand": mb}, {"formula": mb, "twice": mb}, "Peaks.", placement)
    labels = [line.get_label() for line in shown[2][0].axes[0].lines]
    assert labels == ["computed: formula", "computed: twice", "by hand"]
    for figure, _ in shown:
        matplotlib.pyplot.close(figure)
