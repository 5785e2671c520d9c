"""Chapter 14's figures: what their titles and marks say is what they are given."""

import torch

from course_utils.chapters.c14_parameter_servers import figures
from course_utils.parallel import parameter_server as ps


def test_who_waits_counts_the_steps_that_have_ended(shown):
    figures.who_waits({"all": ps.schedule(ps.Asynchronous(), [1, 2, 4], until=7)}, 7, "Nobody waits.")
    assert shown[0].axes[0].get_title(loc="left") == "all: 11 steps"  # 7, 3 and 1; two are not yet over


def test_staleness_marks_the_mean_of_all(shown):
    figures.staleness({"a": ([0, 2], [4, 6]), "b": ([0], [1])}, "Few.", placement=torch.device("cpu"))
    first, second = shown[0].axes
    assert [axes.lines[0].get_xdata()[0] for axes in (first, second)] == [3, 0.5]
    assert first.get_title(loc="left").endswith("mean of all 3.0")


def test_tuned_has_a_dot_a_seed_and_a_bar_at_the_median(shown):
    panels = {"one": {"sync": [3.0, 1.0, 2.5], "async": [1.0, 1.1, 1.2]}, "two": {"async": [0.5, 0.7, 0.6]}}
    figures.tuned(panels, "Dots.", source="recorded")
    first, second = shown[0].axes
    assert [list(line.get_xdata()) for line in first.lines] == [[3.0, 1.0, 2.5], [2.5], [1.0, 1.1, 1.2], [1.1]]
    assert [set(line.get_ydata()) for line in second.lines] == [{1}, {1}]  # in the row of its way
