"""What a cell says of numbers is true of them, also of a record that lacks what is kept today."""

import pytest

from course_utils.chapters.c03_training_on_one_device import in_words


def test_a_peak_is_said_with_its_workspaces_if_they_were_kept():
    values = {"max_memory_allocated": 147_422_208}
    assert in_words.peak(values) == "147.422208 MB at its peak"
    assert in_words.peak(values | {"workspaces": 68_157_440}) == (
        "147.422208 MB at its peak, of which 68.157440 MB are workspaces of cuBLAS"
    )


@pytest.mark.parametrize(
    ("rate64", "end"),
    [
        (36_000, "1.14 times as long as batch 2: t1 from these two says little"),
        (6_400, "6.40 times as long as batch 2"),
    ],
)
def test_a_slope_that_is_hardly_there_is_called_that(rate64, end):
    rates = {2: 1280.0, 64: rate64}
    said = f"ms per step: 1.56 at 2, {64e3 / rate64:.2f} at 64\n    batch 64 takes {end}"
    assert in_words.steps(rates) == said


def test_widths_that_take_the_same_time_are_called_that():
    alike, apart = in_words.widths({"4": 1.64, "128": 1.66}), in_words.widths({"4": 1.0, "128": 3.0})
    assert alike == "4, 128 channels: 1.64, 1.66 ms a step, the same within a quarter: nearly all of it is t0"
    assert apart == "4, 128 channels: 1.00, 3.00 ms a step, the slowest 3.0 times the quickest"


def test_work_is_said_beside_the_step():
    values = {"work": {"4": 0.214, "64": 0.6}, "step": {"4": 1.61, "64": 2.6}}
    assert in_words.work(values) == (
        "the GPU works 0.214 ms of a step of 1.61 ms at batch 4 and 0.6 ms of a step of 2.6 ms at batch 64"
    )
