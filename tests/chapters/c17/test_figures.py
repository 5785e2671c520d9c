"""Chapter 17's figures: who finds a slot, how many rows go where, and that each token is drawn on its whole way."""

import matplotlib
import pytest

from course_utils.chapters.c17_experts import figures as chapter

matplotlib.use("agg")
CHOICES = [[2, 0, 2, 3], [0, 2, 3, 0]]  # of the chapter: expert 1 has no tokens


@pytest.fixture
def figures(monkeypatch):
    """The figures that are shown, with their alternative texts."""
    shown = []
    monkeypatch.setattr(chapter, "show", lambda figure, alt: shown.append((figure, alt)))
    yield shown
    for figure, _ in shown:
        matplotlib.pyplot.close(figure)


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts if text.get_text()]


def arrows(axes):
    return [text for text in axes.texts if getattr(text, "arrow_patch", None) is not None]


def test_slots_are_filled_in_the_order_of_tokens():
    assert chapter.seats([1, 0, 1, 2, 1, 0, 1, 1], 3, 3) == [([1, 5], []), ([0, 2, 4], [6, 7]), ([3], [])]
    assert chapter.seats([], 2, 2) == [([], []), ([], [])]


def test_an_mlp_has_two_arrows_for_each_token_and_experts_one_more_from_the_router(figures):
    chapter.layer([1, 0, 1, 2, 1, 0], "a layer")
    ((figure, alt),) = figures
    assert alt == "a layer" and [len(arrows(axes)) for axes in figure.axes] == [12, 18]


def test_every_token_is_in_a_slot_or_dropped_and_the_rest_is_empty(figures):
    chapter.slots([1, 0, 1, 2, 1, 0, 1, 1], 3, "slots")
    words = texts(figures[0][0])
    assert sorted(word for word in words if word.startswith("t")) == [f"t{token}" for token in range(8)]
    assert words.count("empty") == 3 * 3 - 6 and {"dropped", "c = 1: ⌈8/3⌉ = 3 slots each"} <= set(words)


def test_nothing_is_called_dropped_where_all_find_a_slot(figures):
    chapter.slots([0, 1, 2], 2, "slots")
    assert "dropped" not in texts(figures[0][0]) and "2 slots each" in texts(figures[0][0])


def test_each_token_is_drawn_five_times_and_its_rows_are_sorted_by_expert_at_the_experts(figures):
    chapter.journey(CHOICES, "the way")
    (figure, _) = figures[0]
    words = texts(figure)
    assert all(words.count(f"{name}{token}") == 5 for name in "ab" for token in range(4))
    assert len(arrows(figure.axes[0])) == 4 * 8
    assert "E1: no rows" in words and {"E0", "E2", "E3"} <= set(words)
    _, _, arrived, back, tokens = chapter._columns(CHOICES, 4)
    assert arrived[0] == [(0, 1, 0), (1, 0, 0), (1, 3, 0)]
    assert [row[2] for row in arrived[1]] == [2, 2, 2, 3, 3] and tokens[0][0] == (0, 0, 2)


def test_a_mesh_names_each_expert_twice(figures):
    chapter.mesh("a mesh")
    words = texts(figures[0][0])
    assert all(words.count(f"expert {number}") == 2 for number in range(4))


def test_a_band_is_from_the_lowest_seed_to_the_highest(figures):
    rows = [[1, 5], [3, 4], [2, 9]]
    assert chapter.of_seeds(rows) == ([1, 4], [2, 5], [3, 9])
    found = {"a": ([0, 10], rows), "b": ([0, 10], [[7, 7]])}
    chapter.bands(found, "update", "loss", "two bands", levels={"even": 6}, prediction={10: 8}, source="made up")
    axes = figures[0][0].axes[0]
    assert [line.get_label() for line in axes.lines] == ["a", "b", "even", "your prediction"]
    assert axes.lines[0].get_ydata().tolist() == [2, 5]
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (1, 9)


def test_seeds_apart_are_lines_of_their_own_and_values_below_zero_are_shown(figures):
    chapter.bands({"a": ([0, 10], [[1, -5], [3, 4]])}, "update", "difference", "lines", source="made up", apart=True)
    axes = figures[0][0].axes[0]
    assert [line.get_ydata().tolist() for line in axes.lines] == [[1, -5], [3, 4], [2, -0.5]]
    assert not axes.collections and axes.get_ylim()[0] < -5
