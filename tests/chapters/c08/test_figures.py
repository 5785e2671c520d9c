"""Chapter 08's figures: every message has an arrow, every tensor of a tree reaches rank 0, strips fit their figure."""

import sys

import matplotlib
import pytest
import torch

from course_utils import plots
from course_utils.chapters.c08_processes_that_talk import figures as chapter

matplotlib.use("Agg")
RING = [[(rank, (rank + 1) % 4) for rank in range(4)]] * 6
DOUBLING = [[(rank, rank ^ distance) for rank in range(4)] for distance in (1, 2)]


@pytest.fixture
def figures(monkeypatch):
    """The figures that are shown, with their alternative texts."""
    shown = []
    for module in (chapter, sys.modules["course_utils.plots.holdings"]):
        monkeypatch.setattr(module, "show", lambda figure, alt: shown.append((figure, alt)))
    return shown


def arrows(axes):
    return [text for text in axes.texts if getattr(text, "arrow_patch", None) is not None]


def test_every_message_is_an_arrow_and_a_small_one_is_thin(figures):
    chapter.hops({"doubling": DOUBLING, "ring": RING}, "two ways", shares={"ring": 1 / 4})
    ((figure, alt),) = figures
    doubling, ring = figure.axes
    assert alt == "two ways" and (len(arrows(doubling)), len(arrows(ring))) == (8, 24)
    assert arrows(ring)[0].arrow_patch.get_linewidth() < arrows(doubling)[0].arrow_patch.get_linewidth()
    assert doubling.get_xlim() == ring.get_xlim()  # the same time scale


def test_a_panel_names_its_own_steps_only(figures):
    chapter.hops({"doubling": DOUBLING, "ring": RING}, "two ways")
    ((figure, _),) = figures
    named = [[label.get_text() for label in axes.get_xticklabels()] for axes in figure.axes]
    assert named == [[f"step {k + 1}" for k in range(count)] for count in (2, 6)]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 6, 7, 8])
def test_a_tree_ends_at_rank_0_and_everyone_sends_once(num_ranks):
    levels, steps = chapter.tree_levels(num_ranks)
    held = {rank: {rank} for rank in range(num_ranks)}
    for step in steps:
        for src, dst in step:
            held[dst] |= held[src]
    senders = [src for step in steps for src, _ in step]
    assert levels[-1] == [0] and held[0] == set(range(num_ranks))
    assert sorted(senders) == list(range(1, num_ranks)) and len(steps) == (num_ranks - 1).bit_length()


def test_a_tree_is_drawn(figures):
    chapter.tree(5, "a tree")
    ((figure, _),) = figures
    ranks = [text.get_text() for text in figure.axes[0].texts if text.get_text().isdigit()]
    assert sorted(ranks, key=int) == ["0", "0", "0", "0", "1", "2", "2", "3", "4", "4", "4"]


def test_a_strip_names_its_steps_and_their_names_do_not_overlap(figures):
    plots.holdings([[[1], [10]], [[11], [11]], [[11], [11]]], "a strip")
    ((figure, _),) = figures
    figure.canvas.draw()
    titles = [text for text in figure.axes[0].texts if text.get_text() in ("start", "after step 1", "after step 2")]
    assert len(titles) == 3
    spans = sorted((text.get_window_extent().x0, text.get_window_extent().x1) for text in titles)
    assert all(end < begin for (_, end), (begin, _) in zip(spans, spans[1:]))


def test_fitted_and_withheld_sizes_are_points_of_their_own(figures):
    chapter.fitted([1, 4, 16, 64], [1.0, 2.0, 4.0, 9.0], 1.0, 0.125, "a line", placement=torch.device("cpu"))
    ((figure, _),) = figures
    found = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].get_lines()}
    assert found == {
        "α + βb": [1.125, 1.5, 3.0, 9.0], "fitted sizes": [1.0, 4.0], "withheld sizes": [2.0, 9.0],
    }  # fmt: skip
