"""The loops that chapter 04 draws: what waits for what."""

import matplotlib
import pytest
import torch

from course_utils.chapters.c04_making_one_device_fast import figures
from course_utils.chapters.c04_making_one_device_fast.figures import LOADING, loading_spans

matplotlib.use("agg")


@pytest.mark.parametrize("way", LOADING)
def test_no_batch_is_used_before_it_is_there(way):
    spans = {(row, batch): (begin, end) for row, batch, begin, end in loading_spans(way, 6)}
    for batch in range(1, 7):
        for row in (1, 2):
            if (row - 1, batch) in spans:
                assert spans[row, batch][0] >= spans[row - 1, batch][1]
        if batch > 1:
            assert spans[2, batch][0] >= spans[2, batch - 1][1]


def test_each_way_ends_earlier_than_the_one_before():
    ends = [max(end for *_, end in loading_spans(way, 4)) for way in LOADING]
    assert ends == sorted(ends, reverse=True) and len(set(ends)) == 4


def test_they_are_drawn(capsys):
    figures.overlaps("Four loops.")
    figures.bit_layouts({"float32": (8, 23), "tf32": (8, 10)}, "Two formats.")
    values, memory = {"0 a": (100, 90, 110)}, {"0 a": 5, "1 b": 3}
    figures.ladder(["0 a", "1 b"], values, "images/s", "Two rungs.", memory=memory, placement=torch.device("cpu"))
    assert capsys.readouterr().out.count("Figure: ") == 3


def test_a_rung_without_memory_has_a_dash(shown):
    values, memory = {"0 a": (100, 90, 110), "1 b": (200, 190, 210)}, {"0 a": 5}
    figures.ladder(["0 a", "1 b"], values, "images/s", "Two rungs.", memory=memory, placement=torch.device("cpu"))
    assert [(text.get_text(), text.xy) for text in shown[0].axes[1].texts] == [("5", (5, 0)), ("–", (0, 1))]
