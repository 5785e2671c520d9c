"""Chapter 09's figures: when a message may leave, and that each drawing says what it shows."""

import matplotlib
import pytest
import torch

from course_utils.chapters.c09_distributed_data_parallel import figures

matplotlib.use("agg")

LAYERS = {"last": (1, 2), "first": (4, 1)}


@pytest.mark.parametrize(
    ("buckets", "waits", "sending"),
    [
        ([["last", "first"]], True, [(5, 9, "last+first")]),
        ([["last"], ["first"]], True, [(5, 8, "last"), (8, 10, "first")]),
        ([["last"], ["first"]], False, [(1, 4, "last"), (5, 7, "first")]),
        ([["last", "first"]], False, [(5, 9, "last+first")]),
    ],
)
def test_a_message_leaves_when_its_gradients_are_ready_and_the_link_is_free(buckets, waits, sending):
    assert figures.schedule(LAYERS, buckets, waits, latency=1) == ([(0, 1, "last"), (1, 5, "first")], sending)


def test_drawings_say_what_they_show(capsys):
    figures.replicas("One step of four replicas.")
    figures.ways_to_send("Two buckets are first.")
    passes = {"a way": [[(0, 2, "computing"), (1, 2, "all-reduce")]] * 2}
    figures.backward_passes(passes, "Two ranks.", placement=torch.device("cpu"))
    said = capsys.readouterr().out
    assert all(text in said for text in ("One step of four replicas.", "Two buckets are first.", "Two ranks."))
