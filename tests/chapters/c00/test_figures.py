"""The figures of chapter 00: who runs where, and the repeats of a measurement."""

import matplotlib
import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import FancyBboxPatch

from course_utils.chapters.c00_start_here import figures
from course_utils.plots.style import COLOURS

matplotlib.use("agg")


def test_every_device_is_in_its_process_and_every_process_on_its_machine(shown, capsys):
    figures.setups({"one": [[1]], "several": [[3]], "machines": [[1, 1], [2]]}, "Three panels.")
    (axes,) = shown[0].axes
    frames = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    kinds = {"0.5": [], COLOURS[2]: [], COLOURS[0]: []}  # machines, processes, devices, by the colour of their frames
    for frame in frames:
        (kind,) = [colour for colour in kinds if to_rgba(frame.get_edgecolor()) == to_rgba(colour)]
        kinds[kind].append((frame.get_x(), frame.get_x() + frame.get_width()))
    machines, processes, devices = kinds.values()
    assert (len(machines), len(processes), len(devices)) == (4, 5, 8)
    for inner, outer in ((devices, processes), (processes, machines)):
        assert all(sum(a < x and y < b for a, b in outer) == 1 for x, y in inner)
    arrows = [text for text in axes.texts if getattr(text, "arrow_patch", None)]
    assert len(arrows) == 2  # between two processes of a machine, and between the machines
    assert "Three panels." in capsys.readouterr().out


@pytest.mark.parametrize("prediction", [None, 0.5])
def test_every_repeat_is_a_point_and_the_median_a_bar(shown, capsys, prediction):
    figures.repeats(
        {"a": [0.1, 0.3, 0.2], "b": [2.0, 1.0]}, "time", "Two rows.", prediction={"b": prediction}, source="made up"
    )
    (axes,) = shown[0].axes
    lines = {line.get_label(): line for line in axes.lines}
    assert list(axes.lines[0].get_xdata()) == [0.1, 0.3, 0.2] and list(axes.lines[2].get_ydata()) == [1, 1]
    assert [list(axes.lines[i].get_xdata())[0] for i in (1, 3)] == [0.2, 1.5]
    assert ("your prediction" in lines) == bool(prediction)
    if prediction:
        assert (*lines["your prediction"].get_xdata(), *lines["your prediction"].get_ydata()) == (0.5, 1)
    assert ("(No prediction was made.)" in capsys.readouterr().out) == (prediction is None)
    low, high = axes.get_xlim()
    assert low < 0.1 and high > 2.0
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]
