"""Chapter 14's figures: medians of runs that saved at moments of their own."""

import torch

from course_utils.chapters.c14_parameter_servers import figures


def test_medians_are_of_the_last_points_and_end_with_the_shortest_run(shown):
    runs = {"few": [[(0, 9.0), (2, 5.0), (5, 1.0)], [(1, 8.0), (2, 7.0), (9, 0.0)], [(0, 3.0), (6, 2.0)]]}
    figures.medians(runs, range(8), "time (s)", "loss", "It falls.", placement=torch.device("cpu"))
    line = shown[0].axes[0].lines[0]
    assert list(line.get_xdata()) == [1, 2, 3, 4, 5]  # all have begun, and none has ended
    assert list(line.get_ydata()) == [8.0, 5.0, 5.0, 5.0, 3.0]
