"""What figures say in words: ticks with units, legends, the line below; how they look is looked at by people."""

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

from course_utils import hardware, plots
from course_utils.plots import style
from tests.helpers import machines

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
    plots.lines(
        {"measured": ([1, 2], [1.0, 1.5])},
        "workers",
        "times",
        "It rises.",
        prediction={2: prediction},
        source="made up",
    )
    stars = [line for line in shown[0].axes[0].lines if line.get_marker() == "*"]
    names = [text.get_text() for text in shown[0].axes[0].get_legend().get_texts()]
    assert [list(star.get_ydata()) for star in stars] == ([[2.0]] if prediction else [])
    assert ("your prediction" in names) == bool(prediction)
    assert ("(No prediction was made.)" in capsys.readouterr().out) == (prediction is None)


def test_the_roof_bends_where_the_peak_is_reached(shown, capsys):
    plots.roofline(
        {"a device": (100, 1000)}, {"adding": (0.1, 9.0), "a product": (50, 12_345.0)}, "Two points.", source="a"
    )
    (roof, *points) = shown[0].axes[0].lines
    (x, y) = (list(roof.get_xdata()), list(roof.get_ydata()))
    assert (x[1], y[1:]) == (10, [1000, 1000])
    assert y[0] == pytest.approx(100 * x[0])
    assert [(*point.get_xdata(), *point.get_ydata()) for point in points] == [(0.1, 9.0), (50, 12_345.0)]
    assert [point.get_label() for point in points] == ["adding: 9 GFLOP/s", "a product: 12,345 GFLOP/s"]
    assert "Two points." in capsys.readouterr().out


@pytest.mark.parametrize("source, height", [("", 2.8), ("a source", "no number")])
def test_a_figure_that_cannot_begin_leaves_no_style_behind(source, height, monkeypatch, tmp_path):
    """Its caption cannot be made, since the folder of a shared node's tickets is not safe; or its height is none."""
    tmp_path.chmod(0o777)
    monkeypatch.setenv("COURSE_SHARED", "1")
    monkeypatch.setenv("COURSE_LOCKS", str(tmp_path))
    before, figures = dict(matplotlib.rcParams), plt.get_fignums()
    placement = None if source else torch.device("cpu")
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        with style.new_figure("x", "y", "title", height, source, placement):
            pass
    assert dict(matplotlib.rcParams) == before and plt.get_fignums() == figures


def caption(figure):
    return " ".join(figure.get_supxlabel().split())


def test_a_caption_names_what_the_measurement_used_not_what_the_machine_has(shown, monkeypatch):
    machines.play(monkeypatch, "H200")
    for name in ("CUDA_VISIBLE_DEVICES", "COURSE_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    values = {"measured": ([1, 2], [1.0, 1.5])}
    slow = {"source": "over a slow link", "placement": hardware.choose_backend(2, "gloo").on_cpu()}
    for origin in (
        {"placement": torch.device("cpu")},
        {"placement": torch.device("cuda:0")},
        slow,
        {"source": "counted"},
    ):
        plots.lines(values, "x", "y", "A line.", **origin)
    on_cpu, on_gpu, over_link, counted = map(caption, shown)
    assert on_cpu.startswith("this machine: ") and on_cpu.endswith(", GPU not used") and "H200" not in on_cpu
    assert on_gpu == "this machine: NVIDIA H200"
    assert over_link == f"over a slow link; {on_cpu}, 2 workers with gloo"
    assert counted == "counted"


def test_a_figure_whose_values_come_from_nowhere_is_refused():
    before = plt.get_fignums()
    with pytest.raises(TypeError, match=r"add placement=run\.placement .*, source=.…"):
        plots.bars({"a": 1.0}, "y", "A bar.")
    assert plt.get_fignums() == before


def test_each_panel_of_a_timeline_has_its_own_axis_and_the_same_colours(shown):
    slow, fast = {"load": [(0, 20, "a")], "GPU": [(20, 25, "b"), (25, 26, "other")]}, {"load": [], "GPU": [(0, 2, "b")]}
    plots.timelines({"slow": slow, "fast": fast}, "Two.", source="made up")
    first, second = shown[0].axes
    assert (first.get_title(loc="left"), second.get_title(loc="left")) == ("slow", "fast")
    assert first.get_xlim()[1] > 26 and second.get_xlim()[1] < 3
    a, b, other = first.patches
    assert second.patches[0].get_facecolor() == b.get_facecolor() != a.get_facecolor()
    red, green, blue, _ = other.get_facecolor()
    assert red == green == blue
    assert [label.get_text() for label in second.get_yticklabels()] == ["load", "GPU"]  # the empty row, too
    assert [text.get_text() for text in first.get_legend().get_texts()] == ["a", "b", "other"]


def test_a_short_span_of_a_timeline_has_no_edge_that_would_hide_it(shown):
    plots.timeline({"GPU": [(0, 10, "a"), (10, 10.01, "a")]}, "One.", source="made up")
    long, short = shown[0].axes[0].patches
    assert short.get_edgecolor() == short.get_facecolor() and long.get_edgecolor() != long.get_facecolor()


def test_the_eighth_kind_of_a_timeline_looks_like_no_other(shown):
    plots.timeline({str(i): [(i, i + 1, str(i))] for i in range(9)}, "Nine.", source="made up")
    looks = {(bar.get_facecolor(), bar.get_hatch()) for bar in shown[0].axes[0].patches}
    assert len(looks) == 9
