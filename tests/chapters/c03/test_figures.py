"""The drawings of a training step: what the drawn clocks read, and that every way is drawn."""

import matplotlib
import pytest

from course_utils.chapters.c03_training_on_one_device import figures
from course_utils.chapters.c03_training_on_one_device.figures import late_device
from course_utils.plots import style

matplotlib.use("agg")


@pytest.mark.parametrize("ask, work, waits, read", [
    (1, 2.5, "never", 3), (1, 2.5, "end", 8.5), (1, 0.6, "each", 4.8), (1, 0.6, "end", 3.6),
])  # fmt: skip
def test_a_clock_reads_what_python_has_waited_for(ask, work, waits, read):
    python, device, stopped = late_device(ask, work, 3, waits)
    assert stopped == pytest.approx(read)
    assert [what for *_, what in device] == ["1", "2", "3"] == [what for *_, what in python if what]
    assert all(begin >= asked for (begin, _, _), (_, asked, _) in zip(device, (span for span in python if span[2])))
    assert all(after[0] >= before[1] for before, after in zip(device, device[1:]))


def test_both_drawings_are_shown_with_their_words(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(style, "_png", lambda figure: shown.append(figure) or b"")
    figures.training_step("A step.")
    figures.clocks({"one": (1, 2, 3, "never"), "two": (1, 2, 3, "end")}, "Two clocks.")
    words = [text.get_text() for text in shown[0].axes[0].texts]
    assert {"host", "device", "activations", "copy"} <= set(words)
    assert [axes.get_title(loc="left") for axes in shown[1].axes] == ["one", "two"]
    assert "Figure: A step." in capsys.readouterr().out
