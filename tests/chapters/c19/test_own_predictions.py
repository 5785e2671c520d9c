"""The picture of all predictions, from a made-up set of answers: each is a point in both panels, none outside."""

import json
from statistics import median

import matplotlib
import pytest

from course_utils.chapters.c19_choosing import own_predictions
from tools import notebooks

matplotlib.use("agg")

MADE_UP = [  # chapter, predicted, measured
    *[("00", 8, 0.06), ("01", 30, 10.2), ("02", 50, 1933), ("03", 6, 1.5), ("03", 12, 48), ("08", 12, 30)],
    *[("09", 1.8, 1.8), ("13", 20, 30), ("13", 4.5, 3), ("15", 1e-6, 3e-8), ("19", 25_000, 20_000), ("", 1, 2)],
]
FOUND = [
    {"chapter": chapter, "question": "How many?", "unit": "", "predicted": predicted, "measured": measured}
    for chapter, predicted, measured in MADE_UP
]


def points(axes):
    return {
        line.get_marker(): list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in axes.lines
        if line.get_marker() in ("^", "v")
    }


def test_every_prediction_is_a_point_in_both_panels(shown):
    own_predictions.draw(FOUND, "Points.")
    left, right = shown[0].axes
    too_much, others = points(left)["^"], points(left)["v"]
    assert sorted(too_much + others) == sorted((measured, predicted) for _, predicted, measured in MADE_UP)
    assert all(predicted > measured for measured, predicted in too_much)
    assert all(predicted <= measured for measured, predicted in others)
    chapters = ["00", "01", "02", "03", "08", "09", "13", "15", "19", "–"]
    assert [label.get_text() for label in right.get_xticklabels()] == chapters
    expected = sorted((chapters.index(c or "–"), max(p / m, m / p)) for c, p, m in MADE_UP)
    places, off = zip(*sorted(points(right)["^"] + points(right)["v"]), strict=True)
    assert list(places) == [place for place, _ in expected]
    assert list(off) == pytest.approx([factor for _, factor in expected])
    bars = [line.get_ydata()[0] for line in right.lines if line.get_marker() not in ("^", "v")]
    assert bars == pytest.approx([median(factors) for factors in own_predictions.by_chapter(FOUND).values()])
    for axes in (left, right):
        assert axes.get_yscale() == "log"
        (x_low, x_high), (y_low, y_high) = axes.get_xlim(), axes.get_ylim()
        assert all(x_low < x < x_high and y_low < y < y_high for line in points(axes).values() for x, y in line)


def test_the_sentence_has_the_medians():
    said = " ".join(own_predictions.how_far_off(FOUND[3:6] + FOUND[7:9]).split())
    assert said == "Off by a factor of 2.5 (the median of your 5 predictions); by chapter: 03: 4, 08: 2.5, 13: 1.5."
    assert (
        own_predictions.how_far_off(FOUND[:1]) == "Off by a factor of 133 (your one prediction); by chapter: 00: 133."
    )


def test_without_predictions(shown):
    own_predictions.draw([], "Points.")
    assert not shown
    assert own_predictions.how_far_off([]) == own_predictions.NONE_YET


def test_the_chapters_cell_shows_what_the_students_copy_holds(new_notebook):
    (path,) = notebooks.notebook_paths(["19"])
    (cell,) = [each.source for each in notebooks.read(path).cells if "own_predictions.draw(" in each.source]
    kernel = new_notebook(
        setup="import os\nos.environ.pop('PYTEST_CURRENT_TEST', None)\n"
        "from course_utils.predictions import all_measured\n"
        "from course_utils.chapters.c19_choosing import own_predictions",
        COURSE_PANEL="1",
    )
    outcome = kernel.run(cell)
    assert (outcome.stdout, outcome.values) == (f"{own_predictions.NONE_YET}\n", [])
    entries = {}
    for i, each in enumerate(FOUND):
        entry = {key: value for key, value in each.items() if key != "chapter"}
        entries.setdefault(each["chapter"], {})[f"my_{i}"] = entry
    entries["09"]["my_winner"] = {"question": "Which?", "unit": "", "predicted": "tree", "measured": "ring"}
    entries["10"] = {"my_percent": {"question": "How much?", "unit": "%", "predicted": None}}
    (kernel.directory / "predictions.json").write_text(json.dumps(entries))
    outcome = kernel.run(cell)
    assert outcome.values[0].startswith("Figure: Left: each prediction over what came out")
    assert f"(the median of your {len(FOUND)} predictions)" in outcome.stdout and "10:" not in outcome.stdout
