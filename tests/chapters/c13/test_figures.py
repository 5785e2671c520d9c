"""Chapter 13's figure: which messages leave a node, and that a drawing has every rank in every panel."""

import matplotlib
import pytest

from course_utils.chapters.c13_many_machines import figures

matplotlib.use("agg")


@pytest.mark.parametrize(
    "groups, num_hops, num_leaving",
    [
        ([list(range(8))], 8, 2),  # a ring of all leaves each node once
        ([[0, 1, 2, 3], [4, 5, 6, 7]], 8, 0),
        ([[0, 4], [1, 5], [2, 6], [3, 7]], 8, 8),
        ([[0], [1, 2]], 2, 0),  # a rank alone sends to nobody
    ],
)
def test_a_hop_leaves_its_node_where_its_ends_are_on_two(groups, num_hops, num_leaving):
    hops = figures.hops_of(groups, num_gpus=4)
    assert len(hops) == num_hops and sum(leaves for _, _, leaves in hops) == num_leaving
    assert sorted(src for src, _, _ in hops) == sorted(dst for _, dst, _ in hops)  # each sends once and receives once


def test_every_panel_has_all_ranks_its_title_and_an_arrow_for_each_hop(capsys, monkeypatch):
    shown = []
    monkeypatch.setattr(figures, "show", lambda figure, alt: shown.append((figure, alt)))
    figures.nodes({"one": [list(range(6))], "two": [[0, 3]]}, "Two nodes.", num_nodes=2, num_gpus=3)
    ((figure, alt),) = shown
    assert alt == "Two nodes." and [axes.get_title() for axes in figure.axes] == ["one", "two"]
    for axes, num_arrows in zip(figure.axes, (6, 2)):
        words = [text.get_text() for text in axes.texts]
        assert [word for word in words if word.isdecimal()] == ["0", "1", "2", "3", "4", "5"]
        assert sum(getattr(text, "arrow_patch", None) is not None for text in axes.texts) == num_arrows
    matplotlib.pyplot.close(figure)
