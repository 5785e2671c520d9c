"""Chapter 18's figures: how a job spends its time when it is killed, and that each part is drawn."""

import matplotlib
import pytest
import torch

from course_utils.chapters.c18_a_long_run import figures as chapter
from course_utils.chapters.c18_a_long_run.timeline import Death, Timeline, Try

matplotlib.use("agg")


@pytest.fixture
def shown(monkeypatch):
    """The figures that are shown, with their alternative texts."""
    found = []
    for module in (chapter, chapter.charts):
        monkeypatch.setattr(module, "show", lambda figure, alt: found.append((figure, alt)))
    yield found
    for figure, _ in found:
        matplotlib.pyplot.close(figure)


def seconds_of(spent, kind):
    return sum(end - begin for begin, end, what in spent.spans if what == kind)


def test_without_kills_a_job_trains_and_saves():
    spent = chapter.spend(interval=2, save=0.5, restart=1, kills=(), end=10)
    assert spent.goodput == pytest.approx(0.8) and spent.kills == ()
    assert seconds_of(spent, chapter.SAVING) == pytest.approx(2)


def test_a_kill_loses_all_since_the_last_complete_save_also_a_save_under_way():
    spent = chapter.spend(interval=2, save=0.5, restart=1, kills=(4.75,), end=10)  # in the second save
    assert seconds_of(spent, chapter.LOST) == pytest.approx(2.25)
    assert seconds_of(spent, chapter.STARTING) == pytest.approx(1)
    assert spent.spans[-1][1] == 10 and spent.kills == (4.75,)
    covered = [(end, begin) for (_, end, _), (begin, _, _) in zip(spent.spans, spent.spans[1:], strict=False)]
    assert all(end == begin for end, begin in covered)


def test_a_kill_while_it_starts_again_finds_nobody():
    spent = chapter.spend(interval=2, save=0.5, restart=1, kills=(1, 1.5), end=10)
    assert spent.kills == (1,)


def test_each_kill_is_a_cross_and_each_span_a_bar(shown):
    rows = {"seldom": chapter.spend(6, 0.5, 1, (7, 12), 20), "often": chapter.spend(1, 0.5, 1, (7, 12), 20)}
    chapter.jobs(rows, "two jobs")
    ((figure, alt),) = shown
    (axes,) = figure.axes
    assert alt == "two jobs" and len(axes.patches) == sum(len(spent.spans) for spent in rows.values())
    assert [len(line.get_xdata()) for line in axes.lines] == [2, 2]


def test_goodputs_are_drawn_with_their_origins(shown):
    chapter.goodputs({"exact": ([0.01, 0.02], [0.5, 0.6])}, {"killed": ([0.01], [0.55])}, ("best", 0.015), "g", "s")
    ((figure, _),) = shown
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["exact (computed)", "killed (measured)", "best"]
    assert list(figure.axes[0].lines[1].get_xdata()) == [10.0]


def test_each_round_of_each_way_is_a_point_and_its_stop_a_cross(shown):
    chapter.delays(
        {"control": [-1.0, 2.0, 3.0], "stop": [40.0, 50.0, 90.0]}, {"stop": 45.0}, "delays", torch.device("cpu")
    )
    ((figure, alt),) = shown
    lines = figure.axes[0].lines
    assert [len(line.get_xdata()) for line in lines] == [3, 2, 3, 2, 1, 2] and alt == "delays"
    assert lines[3].get_xdata()[0] == 50.0 and list(lines[4].get_ydata()) == [1]


def test_what_happened_around_a_death_is_drawn_from_the_kill_on(shown):
    tries = [
        Try(replica, "step", step, step, step + 0.9, step + 1, (0, 1), step != 4)
        for step in range(9)
        for replica in (0, 1)
        if (step, replica) < (4, 2)
    ]
    tries.append(Try(0, "group", 4, 5.0, 5.1, 5.2, (0,), True))
    chapter.around(Timeline(tries, [], {}), Death(1, 4.5, 4.6, 4, 5.2), "a death", before=1, after=2)
    ((figure, alt),) = shown
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["replica 0", "replica 1"] and alt == "a death"
    assert min(bar.get_x() for bar in axes.patches) == pytest.approx(-1500)  # step 3 begins 1.5 s before the kill


def test_the_dead_replica_has_no_arrow(shown):
    chapter.shares(60, 2, "shares")
    chapter.in_background("two ways")
    chapter.sawtooth(1, 0.1, "a sawtooth")
    (figure, _), *others = shown
    arrows = [text for text in figure.axes[0].texts if getattr(text, "arrow_patch", None) is not None]
    assert len(arrows) == 3 and len(others) == 2
