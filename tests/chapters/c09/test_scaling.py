"""What workers reach together, in words and numbers."""

from course_utils.chapters.c09_distributed_data_parallel import scaling
from course_utils.measure.throughput import Timing


def test_scaling_is_a_multiple_of_one_process(capsys):
    """Two workers that need two steps' time for a batch each have done as much as one process."""
    timings = {("no DDP", 1): Timing((2.0,)), ("strong", 2): Timing((2.0,)), ("weak", 2): Timing((4.0,)),
               ("half, alone", 1): Timing((1.0,))}  # fmt: skip
    curves = scaling.curves(timings, base_s=1.0, num_images=64, block=2)
    assert curves == {"strong": ([2], [1.0], [[1.0], [1.0]]), "weak": ([2], [1.0], [[1.0], [1.0]])}
    said = capsys.readouterr().out
    assert "strong       2 workers:     64 images/s, 1.00 times as many, 50% of ideal" in said


def test_each_row_says_what_it_adds(capsys):
    scaling.take_apart({"alone": 1.25, "both": 1.0, "DDP": 2.0}, 1.0)
    said = capsys.readouterr().out
    assert "1250.00 ms  +250.00" in said and "1000.00 ms  -250.00" in said
    assert said.endswith("In all +1000.00 ms; the row that adds most: DDP\n")
