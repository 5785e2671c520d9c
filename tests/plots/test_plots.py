"""What figures say in words: ticks with units, legends, the line below; how they look is looked at by people."""

import matplotlib
import matplotlib.pyplot as plt
import pytest

from course_utils import plots
from course_utils.plots import style

matplotlib.use("agg")


@pytest.mark.parametrize(
    "unit, ticks",
    [
        ("bytes", {512: "512 B", 2**16: "64 KiB", 2**20: "1 MiB", 3 * 2**30: "3 GiB", 2**50: "1.02e+03 TiB", 0: "0"}),
        ("seconds", {1e-9: "1 ns", 1e-5: "10 µs", 0.002: "2 ms", 0.9999: "1 s", 1: "1 s", 250: "250 s"}),
    ],
)
def test_ticks_have_the_unit_that_suits_them(unit, ticks):
    figure, axes = plt.subplots()
    style.tick_units(axes, {"x": unit})
    say = axes.xaxis.get_major_formatter()
    plt.close(figure)
    assert {value: say(value, 0) for value in ticks} == ticks


@pytest.mark.parametrize("prediction", [None, 2.0])
def test_a_prediction_is_a_star_or_a_word_below_the_figure(prediction, shown, capsys):
    plots.lines({"measured": ([1, 2], [1.0, 1.5])}, "workers", "times", "It rises.", prediction={2: prediction})
    stars = [line for line in shown[0].axes[0].lines if line.get_marker() == "*"]
    names = [text.get_text() for text in shown[0].axes[0].get_legend().get_texts()]
    assert [list(star.get_ydata()) for star in stars] == ([[2.0]] if prediction else [])
    assert ("your prediction" in names) == bool(prediction)
    assert ("(No prediction was made.)" in capsys.readouterr().out) == (prediction is None)


def test_the_roof_bends_where_the_peak_is_reached(shown, capsys):
    plots.roofline({"a device": (100, 1000)}, {"adding": (0.1, 9.0), "a product": (50, 900.0)}, "Two points.")
    (roof, *points) = shown[0].axes[0].lines
    (x, y) = (list(roof.get_xdata()), list(roof.get_ydata()))
    assert (x[1], y[1:]) == (10, [1000, 1000])
    assert y[0] == pytest.approx(100 * x[0])
    assert [(*point.get_xdata(), *point.get_ydata()) for point in points] == [(0.1, 9.0), (50, 900.0)]
    assert "Two points." in capsys.readouterr().out


@pytest.mark.parametrize("source, height", [("", 2.8), ("a source", "no number")])
def test_a_figure_that_cannot_begin_leaves_no_style_behind(source, height, monkeypatch, tmp_path):
    """Its caption cannot be made, since the folder of a shared node's tickets is not safe; or its height is none."""
    tmp_path.chmod(0o777)
    monkeypatch.setenv("COURSE_SHARED", "1")
    monkeypatch.setenv("COURSE_LOCKS", str(tmp_path))
    before, figures = dict(matplotlib.rcParams), plt.get_fignums()
    with pytest.raises((RuntimeError, TypeError, ValueError)), style.new_figure("x", "y", "title", height, source):
        pass
    assert dict(matplotlib.rcParams) == before and plt.get_fignums() == figures
