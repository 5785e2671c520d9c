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


def test_the_caption_says_what_was_measured_to_hide():
    """Where a backward pass waits for each sum, as with torch 2.15's NCCL, nothing does."""
    sent = [(2, 4, "all-reduce"), (5, 7, "all-reduce"), (9, 11, "all-reduce")]
    goes_on, waits = [(at, at + 3, "computing") for at in (0, 3, 6)], [(at, at + 1, "computing") for at in (1, 4, 8)]
    said = figures.what_is_hidden([sorted(sent + goes_on)] * 2)
    assert said.startswith("Two of three all-reduces run beside computing;")
    said = figures.what_is_hidden([sorted(sent + goes_on), sorted(sent + waits)])
    assert said == "Of three all-reduces, 2 on rank 0 and 0 on rank 1 hide behind computing."


def test_drawings_say_what_they_show(capsys):
    figures.replicas("One step of four replicas.")
    figures.ways_to_send("Two buckets are first.")
    passes = {"a way": [[(0, 2, "computing"), (1, 2, "all-reduce")]] * 2}
    figures.backward_passes(passes, "Two ranks.", placement=torch.device("cpu"))
    said = capsys.readouterr().out
    assert all(text in said for text in ("One step of four replicas.", "Two buckets are first.", "Two ranks."))
